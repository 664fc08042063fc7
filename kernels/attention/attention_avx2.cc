// CPU attention for AVX2 with FMA and F16C: 8 floats a vector, blocks of 3 rows x 32 keys or
// dimensions (12 sums of the 16 registers). Compiled with those flags: holds nothing that other
// files could be linked to but its table.
#include <immintrin.h>

#include "kernels/attention/attention_loop.h"

namespace longspan {
namespace {

struct Avx2 {
  using F = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kPack = 1;
  static constexpr int kMicroRows = 3;
  static constexpr int kMicroVectors = 4;
  static constexpr int kKeyVectors = 1;

  static F Zero() { return _mm256_setzero_ps(); }
  static F Set(float x) { return _mm256_set1_ps(x); }
  static F Load(const float* p) { return _mm256_loadu_ps(p); }
  static void Store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static F Add(F a, F b) { return _mm256_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm256_div_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F Product(F weight, F value, F sum) { return Fma(weight, value, sum); }
  static F StoreWeights(float* row, int key, F x) {
    Store(row + key, x);
    return x;
  }
  static F Max(F a, F b) { return _mm256_max_ps(a, b); }  // b when either is NaN
  static F Min(F a, F b) { return _mm256_min_ps(a, b); }
  static F Abs(F x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
  static float First(F x) { return _mm256_cvtss_f32(x); }
  static float ReduceMax(F x) {
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_shuffle_ps(y, y, 1)));
  }
  static F Iota(int from) {
    return _mm256_add_ps(_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7),
                         _mm256_set1_ps(static_cast<float>(from)));
  }
  // Lanes outside [begin, end) become -inf, whatever they hold.
  static F KeepLanes(F x, int begin, int end) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i outside = _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(begin), lane),
                                            _mm256_cmpgt_epi32(lane, _mm256_set1_epi32(end - 1)));
    return _mm256_blendv_ps(x, _mm256_set1_ps(-__builtin_inff()), _mm256_castsi256_ps(outside));
  }

  // 2^x for x <= 127, relative error below 2e-7; 0 below -126; NaN stays NaN; 2^0 is exactly 1.
  static F Exp2(F x) {
    const F keep = _mm256_cmp_ps(x, _mm256_set1_ps(-126.0f), _CMP_NLT_UQ);
    const F n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const F f = _mm256_sub_ps(x, n);
    F y = _mm256_set1_ps(0.001326472731307149f);
    y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(0.009671512991189957f));
    y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(0.05550733581185341f));
    y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(0.24022242426872253f));
    y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(0.6931470036506653f));
    y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(1.0f));
    const __m256i power =
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_and_ps(keep, _mm256_mul_ps(y, _mm256_castsi256_ps(power)));
  }

  static F LoadHalf(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static F LoadBFloat(const uint16_t* p) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
  }
  static void StoreHalf(uint16_t* p, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  static void StoreBFloat(uint16_t* p, F x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    rounded = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    const __m128i low = _mm256_castsi256_si128(rounded);
    const __m128i high = _mm256_extracti128_si256(rounded, 1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packus_epi32(low, high));
  }

  // Elements d..d+7 of 8 rows (keys) to 8 vectors of 8 keys.
  template <typename T, typename LoadEight>
  [[gnu::always_inline]] static void LoadKeys(const void* const* rows, int d, F (&to)[8],
                                              LoadEight load) {
    __m256 x[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) x[i] = load(static_cast<const T*>(rows[i]) + d);
    __m256 y[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      y[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
      y[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
    // z[j]: elements j and 4 + j of keys 0-3; z[4 + j]: of keys 4-7.
    __m256 z[8];
#pragma GCC unroll 2
    for (int half = 0; half < 8; half += 4) {
      z[half + 0] = _mm256_shuffle_ps(y[half], y[half + 2], 0x44);
      z[half + 1] = _mm256_shuffle_ps(y[half], y[half + 2], 0xee);
      z[half + 2] = _mm256_shuffle_ps(y[half + 1], y[half + 3], 0x44);
      z[half + 3] = _mm256_shuffle_ps(y[half + 1], y[half + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      to[j] = _mm256_permute2f128_ps(z[j], z[4 + j], 0x20);
      to[4 + j] = _mm256_permute2f128_ps(z[j], z[4 + j], 0x31);
    }
  }
  // Eight keys by kDims dimensions in registers, as vectors of keys.
  struct KeyVectors {
    static constexpr int kDims = 8;
    F x[8];
    template <int kDim>
    F Get() const {
      return x[kDim];
    }
  };
  struct FloatKeys : KeyVectors {
    [[gnu::always_inline]] void Load(const void* const* rows, int d, bool /*all*/) {
      LoadKeys<float>(rows, d, x, Avx2::Load);
    }
  };
  struct HalfKeys : KeyVectors {
    [[gnu::always_inline]] void Load(const void* const* rows, int d, bool /*all*/) {
      LoadKeys<uint16_t>(rows, d, x, LoadHalf);
    }
  };
  struct BFloatKeys : KeyVectors {
    [[gnu::always_inline]] void Load(const void* const* rows, int d, bool /*all*/) {
      LoadKeys<uint16_t>(rows, d, x, LoadBFloat);
    }
  };
};

}  // namespace

const AttentionIsa kAttentionAvx2 = {AttentionLoop<Avx2>::Attend, AttentionLoop<Avx2>::Combine};

}  // namespace longspan
