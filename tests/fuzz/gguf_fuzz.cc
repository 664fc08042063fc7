// GGUF from arbitrary bytes: whatever opens must also be readable as it claims.
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/check.h"
#include "model/config_check.h"
#include "model/weight_names.h"
#include "model/weight_source.h"

using namespace longspan;

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  spdlog::set_level(spdlog::level::off);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const int descriptor = ::memfd_create("fuzz", MFD_CLOEXEC);
  CHECK(descriptor >= 0 && ::write(descriptor, data, size) == static_cast<ssize_t>(size));
  const auto source = OpenModel("/proc/self/fd/" + std::to_string(descriptor));
  if (source.ok()) {
    CHECK(CheckModelConfig((*source)->config(), "config").ok());
    std::vector<std::byte> bytes;
    for (const WantedWeight& wanted : WantedWeights((*source)->config(), WeightNaming::kGguf)) {
      const WeightTensor* tensor = (*source)->Find(wanted.role, wanted.layer);
      CHECK(tensor != nullptr && tensor->size_bytes <= static_cast<int64_t>(size));
      bytes.resize(static_cast<size_t>(tensor->size_bytes));
      CHECK((*source)->Read(*tensor, bytes).ok());
    }
  } else {
    CHECK(source.status().message().size() < 1000 &&
          source.status().message().find('\n') == std::string::npos);
  }
  ::close(descriptor);
  return 0;
}
