// Sixteen float or 32-bit integer lanes on whatever vectors the including file is compiled for: one
// 512-bit, two 256-bit or four 128-bit registers. Everything has internal linkage, so that files
// with different instruction sets never share a function; include it only in files of kernels/cpu/.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace longspan {
namespace {

#if defined(__AVX512F__)
constexpr int kNativeBytes = 64;
#elif defined(__AVX2__)
constexpr int kNativeBytes = 32;
#else
constexpr int kNativeBytes = 16;
#endif
constexpr int kNatives = 64 / kNativeBytes;
constexpr int kNativeLanes = 16 / kNatives;

typedef float NativeFloat __attribute__((vector_size(kNativeBytes)));
typedef int32_t NativeInt __attribute__((vector_size(kNativeBytes)));
typedef uint32_t NativeUint __attribute__((vector_size(kNativeBytes)));
typedef float LooseFloat __attribute__((vector_size(kNativeBytes), aligned(4), may_alias));
typedef uint32_t LooseUint __attribute__((vector_size(kNativeBytes), aligned(1), may_alias));

struct Floats {
  NativeFloat v[kNatives];
};
struct Uints {
  NativeUint v[kNatives];
};

#define LONGSPAN_LANES inline __attribute__((always_inline))

template <typename F>
LONGSPAN_LANES void ForNatives(F f) {
#pragma GCC unroll 4
  for (int i = 0; i < kNatives; ++i) f(i);
}

LONGSPAN_LANES Floats Load(const float* p) {
  Floats r;
  ForNatives([&](int i) __attribute__((always_inline)) {
    r.v[i] = *reinterpret_cast<const LooseFloat*>(p + i * kNativeLanes);
  });
  return r;
}
LONGSPAN_LANES Uints LoadUints(const void* p) {
  Uints r;
  ForNatives([&](int i) __attribute__((always_inline)) {
    r.v[i] = *reinterpret_cast<const LooseUint*>(static_cast<const char*>(p) + i * kNativeBytes);
  });
  return r;
}
LONGSPAN_LANES void Store(float* p, const Floats& a) {
  ForNatives([&](int i) __attribute__((always_inline)) {
    *reinterpret_cast<LooseFloat*>(p + i * kNativeLanes) = a.v[i];
  });
}
LONGSPAN_LANES Floats Broadcast(float x) {
  Floats r;
  ForNatives([&](int i) __attribute__((always_inline)) { r.v[i] = x - NativeFloat{}; });
  return r;
}
LONGSPAN_LANES Floats Add(const Floats& a, const Floats& b) {
  Floats r;
  ForNatives([&](int i) __attribute__((always_inline)) { r.v[i] = a.v[i] + b.v[i]; });
  return r;
}
LONGSPAN_LANES Floats Mul(const Floats& a, const Floats& b) {
  Floats r;
  ForNatives([&](int i) __attribute__((always_inline)) { r.v[i] = a.v[i] * b.v[i]; });
  return r;
}
LONGSPAN_LANES Floats Div(const Floats& a, const Floats& b) {
  Floats r;
  ForNatives([&](int i) __attribute__((always_inline)) { r.v[i] = a.v[i] / b.v[i]; });
  return r;
}
// a * b + c, rounded once where the processor can.
LONGSPAN_LANES Floats MulAdd(const Floats& a, const Floats& b, const Floats& c) {
  Floats r;
  ForNatives([&](int i) __attribute__((always_inline)) {
#if defined(__AVX512F__)
    r.v[i] = _mm512_fmadd_ps(a.v[i], b.v[i], c.v[i]);
#elif defined(__FMA__)
    r.v[i] = _mm256_fmadd_ps(a.v[i], b.v[i], c.v[i]);
#else
    r.v[i] = a.v[i] * b.v[i] + c.v[i];
#endif
  });
  return r;
}
LONGSPAN_LANES Uints ShiftRight(const Uints& a, int bits) {
  Uints r;
  ForNatives([&](int i) __attribute__((always_inline)) { r.v[i] = a.v[i] >> bits; });
  return r;
}
LONGSPAN_LANES Uints ShiftLeft(const Uints& a, int bits) {
  Uints r;
  ForNatives([&](int i) __attribute__((always_inline)) { r.v[i] = a.v[i] << bits; });
  return r;
}
LONGSPAN_LANES Uints And(const Uints& a, uint32_t mask) {
  Uints r;
  ForNatives([&](int i) __attribute__((always_inline)) { r.v[i] = a.v[i] & mask; });
  return r;
}
// Lanes as signed integers, shifted right with their sign, then converted.
LONGSPAN_LANES Floats SignedToFloat(const Uints& a, int shift) {
  Floats r;
  ForNatives([&](int i) __attribute__((always_inline)) {
    r.v[i] = __builtin_convertvector(reinterpret_cast<NativeInt>(a.v[i]) >> shift, NativeFloat);
  });
  return r;
}
LONGSPAN_LANES Floats AsFloats(const Uints& a) {
  Floats r;
  ForNatives([&](int i) __attribute__((always_inline)) {
    r.v[i] = reinterpret_cast<NativeFloat>(a.v[i]);
  });
  return r;
}

// Sixteen IEEE halves.
LONGSPAN_LANES Floats LoadHalves(const void* p) {
#if defined(__AVX512F__)
  return {{_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))}};
#elif defined(__AVX2__) && defined(__F16C__)
  const auto* q = static_cast<const __m128i*>(p);
  return {{_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))}};
#else
  alignas(64) float out[16];
  uint16_t bits[16];
  __builtin_memcpy(bits, p, sizeof(bits));
  for (int i = 0; i < 16; ++i) {
    // Moved into a float's fields the exponent is 112 too small; infinities need the rest of
    // theirs.
    const uint32_t moved = static_cast<uint32_t>(bits[i] & 0x7fffu) << 13;
    float value;
    __builtin_memcpy(&value, &moved, 4);
    value *= 0x1p112f;
    uint32_t result;
    __builtin_memcpy(&result, &value, 4);
    if (moved >= 0x0f800000u) result = moved | 0x7f800000u;
    result |= static_cast<uint32_t>(bits[i] & 0x8000u) << 16;
    __builtin_memcpy(out + i, &result, 4);
  }
  return Load(out);
#endif
}

// Rounded to bfloat16 (nearest even), still as floats; NaN stays NaN.
LONGSPAN_LANES Floats RoundToBFloat16(const Floats& a) {
  Floats r;
  ForNatives([&](int i) __attribute__((always_inline)) {
    const NativeUint bits = reinterpret_cast<NativeUint>(a.v[i]);
    const NativeUint rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
    const NativeInt ordered = a.v[i] == a.v[i];
    r.v[i] = reinterpret_cast<NativeFloat>(
        (rounded & reinterpret_cast<NativeUint>(ordered)) |
        ((bits | 0x400000u) & 0xffff0000u & ~reinterpret_cast<NativeUint>(ordered)));
  });
  return r;
}

// Sum of the lanes by halving: lane i + lane i + 8, then i + 4, i + 2, i + 1.
LONGSPAN_LANES float SumLanes(const Floats& a) {
#if defined(__AVX512F__)
  const __m256 high = _mm512_extractf32x8_ps(a.v[0], 1);
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v[0]), high);
#elif defined(__AVX2__)
  const __m256 eight = _mm256_add_ps(a.v[0], a.v[1]);
#endif
#if defined(__AVX2__)
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#else
  alignas(64) float lane[16];
  Store(lane, a);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
  }
  return lane[0];
#endif
}

// e^x for x in [-87, 88] (clamped to it), about one unit in the last place; NaN stays NaN.
LONGSPAN_LANES Floats Exp(const Floats& x) {
  Floats r;
  ForNatives([&](int i) __attribute__((always_inline)) {
    NativeFloat a = x.v[i];
    a = a > 88.0f ? 88.0f - NativeFloat{} : a;
    a = a < -87.0f ? -87.0f - NativeFloat{} : a;
    // Adding 1.5 * 2^23 rounds to an integer that then sits in the low bits.
    const NativeFloat shifted = a * 1.44269504f + 12582912.0f;
    const NativeFloat n = shifted - 12582912.0f;
    const NativeFloat t = (a - n * 0.693359375f) - n * -2.12194440e-4f;
    NativeFloat p = t * (1.0f / 720.0f) + 1.0f / 120.0f;
    p = p * t + 1.0f / 24.0f;
    p = p * t + 1.0f / 6.0f;
    p = p * t + 0.5f;
    p = p * t + 1.0f;
    p = p * t + 1.0f;
    const NativeInt power = (reinterpret_cast<NativeInt>(shifted) << 23) + 0x3f800000;
    r.v[i] = p * reinterpret_cast<NativeFloat>(power);
  });
  return r;
}

}  // namespace
}  // namespace longspan
