// CPU attention with bfloat16 products (AVX512_BF16) of weights and values: both are rounded to
// bfloat16 and multiplied in pairs at twice the rate of floats. Scores stay in float: bfloat16
// queries and keys are too coarse for real models. Compiled with its flags: holds nothing that
// other files could be linked to but its table.
#include "kernels/attention/attention_avx512.h"
#include "kernels/attention/attention_loop.h"

namespace longspan {
namespace {

// A lane of weights or values holds two neighbouring keys.
struct Avx512Pairs : Avx512 {
  static constexpr int kPack = 2;

  static F Product(F a, F b, F c) {
    return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
  // Stores weights rounded, and returns what they became.
  static F StoreWeights(float* row, int key, F x) {
    const __m256i narrow = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(reinterpret_cast<uint16_t*>(row) + key), narrow);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
  }

  static F LoadEightHalves(const uint16_t* p) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm512_cvtph_ps(_mm256_zextsi128_si256(x));
  }

  // Sixteen dimensions from d of two rows (keys), side by side.
  static F LoadPairsHalf(const void* row0, const void* row1, int d) {
    const __m512 a = LoadHalf(static_cast<const uint16_t*>(row0) + d);
    const __m512 b = LoadHalf(static_cast<const uint16_t*>(row1) + d);
    return SideBySide(reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a)));
  }
  static F LoadPairsBFloat(const void* row0, const void* row1, int d) {
    const auto* a = reinterpret_cast<const __m256i*>(static_cast<const uint16_t*>(row0) + d);
    const auto* b = reinterpret_cast<const __m256i*>(static_cast<const uint16_t*>(row1) + d);
    return SideBySide(_mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(a)),
                                         _mm256_loadu_si256(b), 1));
  }

  // Two rows (keys) to one of pairs; behind head_dim up to the padding the pairs are 0.
  static void InterleaveHalf(const void* row0, const void* row1, int head_dim, float* to) {
    int d = 0;
    for (; d + 16 <= head_dim; d += 16) Store(to + d, LoadPairsHalf(row0, row1, d));
    if (d < head_dim) {
      const __m512 a = LoadEightHalves(static_cast<const uint16_t*>(row0) + d);
      const __m512 b = LoadEightHalves(static_cast<const uint16_t*>(row1) + d);
      Store(to + d, SideBySide(reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a))));
    }
  }
  static void InterleaveBFloat(const void* row0, const void* row1, int head_dim, float* to) {
    int d = 0;
    for (; d + 16 <= head_dim; d += 16) Store(to + d, LoadPairsBFloat(row0, row1, d));
    if (d < head_dim) {
      const auto* a = reinterpret_cast<const __m128i*>(static_cast<const uint16_t*>(row0) + d);
      const auto* b = reinterpret_cast<const __m128i*>(static_cast<const uint16_t*>(row1) + d);
      const __m512i low = _mm512_zextsi128_si512(_mm_loadu_si128(a));
      Store(to + d, SideBySide(_mm512_inserti32x4(low, _mm_loadu_si128(b), 2)));
    }
  }
  // Sixteen elements of one row, then of the other, to sixteen pairs.
  static F SideBySide(__m512i rows) {
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(order, rows));
  }
};

}  // namespace

const AttentionIsa kAttentionAvx512BFloat16 = {AttentionLoop<Avx512Pairs>::Attend,
                                               AttentionLoop<Avx512Pairs>::Combine};

}  // namespace longspan
