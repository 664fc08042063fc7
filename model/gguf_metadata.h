// Reads the metadata part of a GGUF file into values. Lengths and counts are checked against the
// rest of the file before anything is allocated for them.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "model/gguf_reader.h"
#include "model/gguf_value.h"

namespace longspan {

// count: how many keys follow. Problems, a key given twice among them, go to the reader.
void ReadGgufMetadata(GgufReader& in, uint64_t count, std::map<std::string, GgufValue>& metadata);

}  // namespace longspan
