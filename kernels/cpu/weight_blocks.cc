// Bit layouts of GGUF's block formats. Compiled without contraction of a * b + c, so that a value
// is rounded as the format's definition in float arithmetic says.
#include "kernels/cpu/weight_blocks.h"

#include <cstring>

#include "core/dtype.h"

namespace longspan {
namespace {

float LoadHalf(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return Float16ToFloat(bits);
}

// 32 4-bit codes: element j in the low half of byte j, element j + 16 in the high half.
void DecodeNibbles(const uint8_t* q, int offset, int8_t* code) {
  for (int j = 0; j < 16; ++j) {
    code[j] = static_cast<int8_t>((q[j] & 15) - offset);
    code[j + 16] = static_cast<int8_t>((q[j] >> 4) - offset);
  }
}

// As above with a fifth bit per element in a 32-bit word.
void DecodeFiveBits(const uint8_t* high, const uint8_t* q, int offset, int8_t* code) {
  uint32_t bits;
  std::memcpy(&bits, high, sizeof(bits));
  DecodeNibbles(q, 0, code);
  for (int j = 0; j < 32; ++j) {
    code[j] = static_cast<int8_t>(code[j] + static_cast<int>((bits >> j) & 1) * 16 - offset);
  }
}

// Eight pairs of 6-bit scale and minimum in 12 bytes: the first four plain, the others split so
// that their upper two bits sit on top of the first four's bytes.
void DecodeKScales(const uint8_t* block, BlockCodes& out) {
  const float d = LoadHalf(block);
  const float dmin = LoadHalf(block + 2);
  const uint8_t* s = block + 4;
  for (int j = 0; j < 8; ++j) {
    const int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | ((s[j - 4] >> 6) << 4);
    const int min = j < 4 ? s[j + 4] & 63 : (s[j + 4] >> 4) | ((s[j] >> 6) << 4);
    out.scale[j] = d * static_cast<float>(scale);
    out.min[j] = -(dmin * static_cast<float>(min));
  }
}

// 256 4-bit codes: 32 bytes hold sub-block 2i in their low halves, 2i + 1 in their high halves. A
// fifth bit, when there is one, is bit s of high[l] for element l of sub-block s.
void DecodeKNibbles(const uint8_t* q, const uint8_t* high, int8_t* code) {
  for (int s = 0; s < 8; ++s) {
    for (int l = 0; l < 32; ++l) {
      const int nibble = (q[(s / 2) * 32 + l] >> (4 * (s % 2))) & 15;
      const int fifth = high == nullptr ? 0 : ((high[l] >> s) & 1) * 16;
      code[s * 32 + l] = static_cast<int8_t>(nibble + fifth);
    }
  }
}

// 256 6-bit codes minus 32, in two halves of 128: four bits in 64 bytes, two more in 32 bytes.
void DecodeQ6K(const uint8_t* block, BlockCodes& out) {
  const uint8_t* low = block;
  const uint8_t* high = block + 128;
  const uint8_t* scales = block + 192;
  const float d = LoadHalf(block + 208);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128;
    const int quarter = (i % 128) / 32;
    const int l = i % 32;
    const int four = (low[half * 64 + (quarter % 2) * 32 + l] >> (4 * (quarter / 2))) & 15;
    const int two = (high[half * 32 + l] >> (2 * quarter)) & 3;
    out.code[i] = static_cast<int8_t>((four | (two << 4)) - 32);
  }
  for (int s = 0; s < 16; ++s)
    out.scale[s] = d * static_cast<float>(static_cast<int8_t>(scales[s]));
}

}  // namespace

std::string_view WeightFormatName(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "F32";
    case WeightFormat::kF16:
      return "F16";
    case WeightFormat::kBF16:
      return "BF16";
    case WeightFormat::kQ4_0:
      return "Q4_0";
    case WeightFormat::kQ4_1:
      return "Q4_1";
    case WeightFormat::kQ5_0:
      return "Q5_0";
    case WeightFormat::kQ5_1:
      return "Q5_1";
    case WeightFormat::kQ8_0:
      return "Q8_0";
    case WeightFormat::kQ4_K:
      return "Q4_K";
    case WeightFormat::kQ5_K:
      return "Q5_K";
    case WeightFormat::kQ6_K:
      return "Q6_K";
  }
  return "unknown";
}

BlockShape ShapeOf(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return {1, 4, 1, false, false};
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
      return {1, 2, 1, false, false};
    case WeightFormat::kQ4_0:
      return {32, 18, 32, false, true};
    case WeightFormat::kQ4_1:
      return {32, 20, 32, true, true};
    case WeightFormat::kQ5_0:
      return {32, 22, 32, false, true};
    case WeightFormat::kQ5_1:
      return {32, 24, 32, true, true};
    case WeightFormat::kQ8_0:
      return {32, 34, 32, false, true};
    case WeightFormat::kQ4_K:
      return {256, 144, 32, true, true};
    case WeightFormat::kQ5_K:
      return {256, 176, 32, true, true};
    case WeightFormat::kQ6_K:
      return {256, 210, 16, false, true};
  }
  return {};
}

int WeightBlockElements(WeightFormat format) { return ShapeOf(format).elements; }
int WeightBlockBytes(WeightFormat format) { return ShapeOf(format).bytes; }

void DecodeBlock(WeightFormat format, const uint8_t* block, BlockCodes& out) {
  switch (format) {
    case WeightFormat::kQ4_0:
      out.scale[0] = LoadHalf(block);
      return DecodeNibbles(block + 2, 8, out.code);
    case WeightFormat::kQ4_1:
      out.scale[0] = LoadHalf(block);
      out.min[0] = LoadHalf(block + 2);
      return DecodeNibbles(block + 4, 0, out.code);
    case WeightFormat::kQ5_0:
      out.scale[0] = LoadHalf(block);
      return DecodeFiveBits(block + 2, block + 6, 16, out.code);
    case WeightFormat::kQ5_1:
      out.scale[0] = LoadHalf(block);
      out.min[0] = LoadHalf(block + 2);
      return DecodeFiveBits(block + 4, block + 8, 0, out.code);
    case WeightFormat::kQ8_0:
      out.scale[0] = LoadHalf(block);
      std::memcpy(out.code, block + 2, 32);
      return;
    case WeightFormat::kQ4_K:
      DecodeKScales(block, out);
      return DecodeKNibbles(block + 16, nullptr, out.code);
    case WeightFormat::kQ5_K:
      DecodeKScales(block, out);
      return DecodeKNibbles(block + 48, block + 16, out.code);
    case WeightFormat::kQ6_K:
      return DecodeQ6K(block, out);
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
      return;  // no blocks: callers ask ShapeOf first
  }
}

void DequantizeRow(WeightFormat format, const void* blocks, int64_t num_elements, float* out) {
  if (num_elements == 0) return;  // the pointers may be null then, which memcpy does not allow
  const auto* in = static_cast<const uint8_t*>(blocks);
  if (format == WeightFormat::kF32) {
    std::memcpy(out, in, static_cast<size_t>(num_elements) * sizeof(float));
    return;
  }
  if (format == WeightFormat::kF16 || format == WeightFormat::kBF16) {
    for (int64_t i = 0; i < num_elements; ++i) {
      uint16_t bits;
      std::memcpy(&bits, in + 2 * i, sizeof(bits));
      out[i] = format == WeightFormat::kF16 ? Float16ToFloat(bits) : BFloat16ToFloat(bits);
    }
    return;
  }
  const BlockShape shape = ShapeOf(format);
  BlockCodes codes;
  for (int64_t first = 0; first < num_elements; first += shape.elements, in += shape.bytes) {
    DecodeBlock(format, in, codes);
    for (int i = 0; i < shape.elements; ++i) {
      const int s = i / shape.sub_block;
      const float product = codes.scale[s] * static_cast<float>(codes.code[i]);
      out[first + i] = shape.has_min ? product + codes.min[s] : product;
    }
  }
}

}  // namespace longspan
