// What a call of the GPU's runtime answered. A failure after start-up is not recoverable in the
// process: the caller reports the text and ends.
#pragma once

#include <string_view>

namespace longspan {

struct [[nodiscard]] GpuResult {
  int code = 0;  // the vendor's number; 0: success
  bool ok() const { return code == 0; }
  std::string_view text() const;
};

}  // namespace longspan
