// Vectors of 16 floats for AVX-512 (F, BW, DQ, VL), as attention_loop.h wants them: blocks of 6
// rows x 64 keys or dimensions. Everything has internal linkage; include it only in files compiled
// with those flags.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/attention/attention_tiling.h"

namespace longspan {
namespace {

struct Avx512 {
  using F = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kPack = 1;
  static constexpr int kMicroRows = 6;
  static constexpr int kMicroVectors = 4;
  static constexpr int kKeyVectors = 2;

  static F Zero() { return _mm512_setzero_ps(); }
  static F Set(float x) { return _mm512_set1_ps(x); }
  static F Load(const float* p) { return _mm512_loadu_ps(p); }
  static void Store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static F Add(F a, F b) { return _mm512_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm512_div_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F Product(F weight, F value, F sum) { return Fma(weight, value, sum); }
  static F StoreWeights(float* row, int key, F x) {
    Store(row + key, x);
    return x;
  }
  static F Max(F a, F b) { return _mm512_max_ps(a, b); }  // b when either is NaN
  static F Min(F a, F b) { return _mm512_min_ps(a, b); }
  static F Abs(F x) { return _mm512_abs_ps(x); }
  static float First(F x) { return _mm512_cvtss_f32(x); }
  static float ReduceMax(F x) { return _mm512_reduce_max_ps(x); }
  static F Iota(int from) {
    const __m512 lanes = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_add_ps(lanes, _mm512_set1_ps(static_cast<float>(from)));
  }
  // Lanes outside [begin, end) become -inf, whatever they hold.
  static F KeepLanes(F x, int begin, int end) {
    const uint32_t below_end = end <= 0 ? 0 : end >= 16 ? 0xffffu : (1u << end) - 1;
    const uint32_t below_begin = begin <= 0 ? 0 : begin >= 16 ? 0xffffu : (1u << begin) - 1;
    return _mm512_mask_mov_ps(_mm512_set1_ps(-__builtin_inff()),
                              static_cast<__mmask16>(below_end & ~below_begin), x);
  }

  // 2^x for x <= 127, relative error below 2e-7; 0 below -126; NaN stays NaN; 2^0 is exactly 1.
  static F Exp2(F x) {
    const __mmask16 keep = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    const F n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const F f = _mm512_sub_ps(x, n);
    F y = _mm512_set1_ps(0.001326472731307149f);
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.009671512991189957f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.05550733581185341f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.24022242426872253f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.6931470036506653f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(keep, y, n);
  }

  static F LoadHalf(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F LoadBFloat(const uint16_t* p) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
  }
  static void StoreHalf(uint16_t* p, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static void StoreBFloat(uint16_t* p, F x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
  }

  // Sixteen keys by kDims dimensions in registers, as vectors of keys. Load takes dimensions
  // d..d+kDims-1, or the first eight of them only and zeros.
  struct FloatKeys {
    static constexpr int kDims = 8;
    F x[8];
    [[gnu::always_inline]] void Load(const void* const* rows, int d, bool /*all*/) {
      // Row i of the eight holds keys i and i + 8: lanes {key i: d..d+7, key i + 8: d..d+7}.
      for (int i = 0; i < 8; ++i) {
        const __m256 low = _mm256_loadu_ps(static_cast<const float*>(rows[i]) + d);
        const __m256 high = _mm256_loadu_ps(static_cast<const float*>(rows[i + 8]) + d);
        x[i] = _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
      }
      F y[8];
      for (int i = 0; i < 8; i += 2) {
        y[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
      }
      // z[j], quarter q: element 4 (q % 2) + j of keys 0-3 (+8 in the upper half); z[4 + j]: keys
      // 4-7.
      F z[8];
      for (int half = 0; half < 2; ++half) {
        const F* from = y + 4 * half;
        z[4 * half + 0] = Low64(from[0], from[2]);
        z[4 * half + 1] = High64(from[0], from[2]);
        z[4 * half + 2] = Low64(from[1], from[3]);
        z[4 * half + 3] = High64(from[1], from[3]);
      }
      const __m512i even = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
      const __m512i odd = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
      for (int j = 0; j < 4; ++j) {
        const __m512d a = _mm512_castps_pd(z[j]);
        const __m512d b = _mm512_castps_pd(z[4 + j]);
        x[j] = _mm512_castpd_ps(_mm512_permutex2var_pd(a, even, b));
        x[4 + j] = _mm512_castpd_ps(_mm512_permutex2var_pd(a, odd, b));
      }
    }
    template <int kDim>
    F Get() const {
      return x[kDim];
    }
  };
  static F Low64(F a, F b) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  }
  static F High64(F a, F b) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  }

  // Sixteen 16-bit elements of keys i and i + 8, a key in each half.
  [[gnu::always_inline]] static __m512i TwoKeys(const void* const* rows, int i, int d, bool all) {
    const auto* low = static_cast<const uint16_t*>(rows[i]) + d;
    const auto* high = static_cast<const uint16_t*>(rows[i + 8]) + d;
    if (all) {
      const __m512i x =
          _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(low)));
      return _mm512_inserti64x4(x, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(high)), 1);
    }
    const __m512i x =
        _mm512_zextsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(low)));
    return _mm512_inserti32x4(x, _mm_loadu_si128(reinterpret_cast<const __m128i*>(high)), 2);
  }

  struct HalfKeys {
    static constexpr int kDims = 16;
    __m512i two[8];  // [e]: dimension e of the keys, then dimension 8 + e
    [[gnu::always_inline]] void Load(const void* const* rows, int d, bool all) {
      __m512i x[8];  // [pair of keys i, i + 8][all 16 dimensions]
      for (int i = 0; i < 8; ++i) x[i] = TwoKeys(rows, i, d, all);
      __m512i y[8];
      for (int i = 0; i < 8; i += 2) {
        y[i] = _mm512_unpacklo_epi16(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi16(x[i], x[i + 1]);
      }
      // z[4 h + j], each quarter: dimensions 2j, then 2j + 1 of keys 4h..4h+3.
      __m512i z[8];
      for (int h = 0; h < 8; h += 4) {
        z[h + 0] = _mm512_unpacklo_epi32(y[h], y[h + 2]);
        z[h + 1] = _mm512_unpackhi_epi32(y[h], y[h + 2]);
        z[h + 2] = _mm512_unpacklo_epi32(y[h + 1], y[h + 3]);
        z[h + 3] = _mm512_unpackhi_epi32(y[h + 1], y[h + 3]);
      }
      for (int j = 0; j < 4; ++j) {
        const __m512i a = _mm512_unpacklo_epi64(z[j], z[4 + j]);
        const __m512i b = _mm512_unpackhi_epi64(z[j], z[4 + j]);
        two[2 * j] = _mm512_shuffle_i64x2(a, a, 0xd8);
        two[2 * j + 1] = _mm512_shuffle_i64x2(b, b, 0xd8);
      }
    }
    template <int kDim>
    F Get() const {
      if constexpr (kDim < 8) {
        return _mm512_cvtph_ps(_mm512_castsi512_si256(two[kDim]));
      } else {
        return _mm512_cvtph_ps(_mm512_extracti64x4_epi64(two[kDim - 8], 1));
      }
    }
  };

  struct BFloatKeys {
    static constexpr int kDims = 16;
    __m512i two[8];  // [j]: dimensions 2j and 2j + 1 of each key, side by side
    [[gnu::always_inline]] void Load(const void* const* rows, int d, bool all) {
      __m512i x[8];
      for (int i = 0; i < 8; ++i) x[i] = TwoKeys(rows, i, d, all);
      // z[4 h + j], each quarter: dimensions (2j, 2j + 1) of keys 4h..4h+3.
      __m512i z[8];
      for (int h = 0; h < 8; h += 4) {
        const __m512i a = _mm512_unpacklo_epi32(x[h], x[h + 1]);
        const __m512i b = _mm512_unpackhi_epi32(x[h], x[h + 1]);
        const __m512i c = _mm512_unpacklo_epi32(x[h + 2], x[h + 3]);
        const __m512i e = _mm512_unpackhi_epi32(x[h + 2], x[h + 3]);
        z[h + 0] = _mm512_unpacklo_epi64(a, c);
        z[h + 1] = _mm512_unpackhi_epi64(a, c);
        z[h + 2] = _mm512_unpacklo_epi64(b, e);
        z[h + 3] = _mm512_unpackhi_epi64(b, e);
      }
      const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
      const __m512i high = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
      for (int j = 0; j < 4; ++j) {
        two[j] = _mm512_permutex2var_epi64(z[j], low, z[4 + j]);
        two[4 + j] = _mm512_permutex2var_epi64(z[j], high, z[4 + j]);
      }
    }
    template <int kDim>
    F Get() const {
      if constexpr (kDim % 2 == 0) return _mm512_castsi512_ps(_mm512_slli_epi32(two[kDim / 2], 16));
      const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
      return _mm512_castsi512_ps(_mm512_and_si512(two[kDim / 2], upper));
    }
  };
};

}  // namespace
}  // namespace longspan
