// Looks at bits only: an exponent of all ones is NaN or infinity. The largest product of finite
// float16 scales and integer codes is far inside float's range, so scales decide for their block.
#include "model/weight_check.h"

#include <cstring>

#include "core/check.h"
#include "core/log.h"

namespace longspan {
namespace {

// Byte offsets of the float16 scales in a block; -1: none.
struct ScalePlaces {
  int first = -1;
  int second = -1;
};

ScalePlaces ScalesOf(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ4_0:
    case WeightFormat::kQ5_0:
    case WeightFormat::kQ8_0:
      return {0, -1};
    case WeightFormat::kQ4_1:
    case WeightFormat::kQ5_1:
    case WeightFormat::kQ4_K:
    case WeightFormat::kQ5_K:
      return {0, 2};  // scale and minimum
    case WeightFormat::kQ6_K:
      return {208, -1};
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
      break;
  }
  return {};
}

template <typename Bits>
bool ExponentIsFull(const std::byte* at, Bits mask) {
  Bits bits;
  std::memcpy(&bits, at, sizeof(bits));
  return (bits & mask) == mask;
}

bool BlockIsFinite(WeightFormat format, ScalePlaces scales, const std::byte* block) {
  constexpr uint16_t kHalfMask = 0x7c00;
  switch (format) {
    case WeightFormat::kF32:
      return !ExponentIsFull<uint32_t>(block, 0x7f800000u);
    case WeightFormat::kBF16:
      return !ExponentIsFull<uint16_t>(block, 0x7f80);
    case WeightFormat::kF16:
      return !ExponentIsFull<uint16_t>(block, kHalfMask);
    default:
      return !ExponentIsFull<uint16_t>(block + scales.first, kHalfMask) &&
             (scales.second < 0 || !ExponentIsFull<uint16_t>(block + scales.second, kHalfMask));
  }
}

}  // namespace

std::optional<int64_t> FindNonFinite(WeightFormat format, std::span<const std::byte> blocks) {
  const auto block_bytes = static_cast<size_t>(WeightBlockBytes(format));
  CHECK(blocks.size() % block_bytes == 0, "{} bytes of {}", blocks.size(),
        WeightFormatName(format));
  const ScalePlaces scales = ScalesOf(format);
  for (size_t at = 0; at < blocks.size(); at += block_bytes) {
    if (!BlockIsFinite(format, scales, blocks.data() + at)) {
      return static_cast<int64_t>(at / block_bytes) * WeightBlockElements(format);
    }
  }
  return std::nullopt;
}

Status CheckFinite(const WeightTensor& tensor, std::span<const std::byte> blocks) {
  const auto place = FindNonFinite(tensor.format, blocks);
  if (!place) return absl::OkStatus();
  return InvalidArgument("tensor {} is NaN or infinite at element {}, wanted finite weights",
                         Escaped(tensor.name), *place);
}

}  // namespace longspan
