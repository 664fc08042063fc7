// The rotary embedding part of config.json, in the older spelling (rope_theta, rope_scaling) and
// the newer (rope_parameters).
#pragma once

#include <string>

#include "model/json_fields.h"
#include "model/model_config.h"

namespace longspan {

// Fills config.rope, and extends config.context_length where yarn's factor and original length say
// that the model reaches further. config.head_dim and context_length must be set. Problems go to
// fields.
void ReadHfRope(JsonFields& fields, const std::string& file, ModelConfig& config);

}  // namespace longspan
