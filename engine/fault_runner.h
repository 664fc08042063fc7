// Injected device faults, for tests of what must happen when a device is lost. Compiled in with
// LONGSPAN_FAULTS only; a normal build refuses every fault.
#pragma once

#include <memory>
#include <string>

#include "core/status.h"
#include "model/model_runner.h"

namespace longspan {

// fault "": the runner itself. "step-error@N": Collect of the N-th step fails. "step-stuck@N": it
// never returns. Anything else is kInvalidArgument.
StatusOr<std::unique_ptr<ModelRunner>> WithFault(std::unique_ptr<ModelRunner> runner,
                                                 const std::string& fault);

}  // namespace longspan
