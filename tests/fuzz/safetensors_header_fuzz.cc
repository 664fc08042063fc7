// A safetensors header from arbitrary bytes: what is accepted covers its data exactly. The first
// two bytes of the input are the number of data bytes, the rest is the header.
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/check.h"
#include "model/safetensors_file.h"

using namespace longspan;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const int64_t data_bytes = data[0] + 256 * data[1];
  const std::string_view header(reinterpret_cast<const char*>(data) + 2, size - 2);
  const auto entries = ParseSafetensorsHeader(header, data_bytes, "x");
  if (!entries.ok()) {
    CHECK(entries.status().message().size() < 1000 &&
          entries.status().message().find('\n') == std::string::npos);
    return 0;
  }
  int64_t end = 0;
  for (const SafetensorsEntry& entry : *entries) {
    CHECK(entry.offset == end && entry.size_bytes >= 0);
    end += entry.size_bytes;
  }
  CHECK(end == data_bytes);
  return 0;
}
