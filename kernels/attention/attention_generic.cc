// CPU attention for any processor: vectors of 4 floats in the compiler's own terms. The slow path,
// and what the other instruction sets are compared with. Products and sums are rounded apart (no
// fused operation is assumed), so this file is compiled without contraction.
#include "kernels/attention/attention_loop.h"

namespace longspan {
namespace {

struct Generic {
  typedef float F __attribute__((vector_size(16)));
  typedef int32_t Ints __attribute__((vector_size(16)));
  typedef uint32_t Bits __attribute__((vector_size(16)));
  typedef float LooseFloat __attribute__((vector_size(16), aligned(4), may_alias));
  static constexpr int kLanes = 4;
  static constexpr int kPack = 1;
  static constexpr int kMicroRows = 2;
  static constexpr int kMicroVectors = 4;
  static constexpr int kKeyVectors = 1;

  static F Zero() { return F{}; }
  static F Set(float x) { return F{x, x, x, x}; }
  static F Load(const float* p) { return *reinterpret_cast<const LooseFloat*>(p); }
  static void Store(float* p, F x) { *reinterpret_cast<LooseFloat*>(p) = x; }
  static F Add(F a, F b) { return a + b; }
  static F Sub(F a, F b) { return a - b; }
  static F Mul(F a, F b) { return a * b; }
  static F Div(F a, F b) { return a / b; }
  static F Fma(F a, F b, F c) { return a * b + c; }
  static F Product(F weight, F value, F sum) { return Fma(weight, value, sum); }
  static F StoreWeights(float* row, int key, F x) {
    Store(row + key, x);
    return x;
  }
  static F Max(F a, F b) { return a > b ? a : b; }  // b when either is NaN
  static F Min(F a, F b) { return a < b ? a : b; }
  static F Abs(F x) { return reinterpret_cast<F>(reinterpret_cast<Bits>(x) & 0x7fffffffu); }
  static float First(F x) { return x[0]; }
  static float ReduceMax(F x) {
    const float low = x[0] > x[1] ? x[0] : x[1];
    const float high = x[2] > x[3] ? x[2] : x[3];
    return low > high ? low : high;
  }
  static F Iota(int from) { return F{0, 1, 2, 3} + Set(static_cast<float>(from)); }
  // Lanes outside [begin, end) become -inf, whatever they hold.
  static F KeepLanes(F x, int begin, int end) {
    const Ints lane = {0, 1, 2, 3};
    return ((lane >= begin) & (lane < end)) ? x : Set(-__builtin_inff());
  }

  // 2^x for x <= 127, relative error below 3e-7; 0 below -126; NaN stays NaN; 2^0 is exactly 1.
  static F Exp2(F x) {
    const F safe = x < Set(-126.0f) ? Set(-126.0f) : x;
    const F shifted = safe + Set(12582912.0f);  // 1.5 * 2^23: rounds to an integer in the low bits
    const F f = safe - (shifted - Set(12582912.0f));
    F y = Set(0.001326472731307149f);
    y = y * f + Set(0.009671512991189957f);
    y = y * f + Set(0.05550733581185341f);
    y = y * f + Set(0.24022242426872253f);
    y = y * f + Set(0.6931470036506653f);
    y = y * f + Set(1.0f);
    const F power = reinterpret_cast<F>((reinterpret_cast<Bits>(shifted) << 23) + 0x3f800000u);
    return x < Set(-126.0f) ? Zero() : y * power;
  }

  static F LoadHalf(const uint16_t* p) {
    const Bits bits = {p[0], p[1], p[2], p[3]};
    // Moved into a float's fields the exponent is 112 too small; infinities and NaN need the rest
    // of it.
    const Bits moved = (bits & 0x7fffu) << 13;
    const Bits scaled = reinterpret_cast<Bits>(reinterpret_cast<F>(moved) * Set(0x1p112f));
    const Bits infinite = reinterpret_cast<Bits>(moved >= 0x0f800000u) & 0x7f800000u;
    return reinterpret_cast<F>(scaled | infinite | ((bits & 0x8000u) << 16));
  }
  static F LoadBFloat(const uint16_t* p) {
    const Bits bits = {p[0], p[1], p[2], p[3]};
    return reinterpret_cast<F>(bits << 16);
  }
  static void StoreHalf(uint16_t* p, F x) {
    for (int i = 0; i < kLanes; ++i) p[i] = FloatToFloat16(x[i]);
  }
  static void StoreBFloat(uint16_t* p, F x) {
    for (int i = 0; i < kLanes; ++i) p[i] = FloatToBFloat16(x[i]);
  }

  // Elements d..d+7 of 4 rows (keys) to 8 vectors of 4 keys.
  template <typename T, typename LoadFour>
  [[gnu::always_inline]] static void LoadKeys(const void* const* rows, int d, F (&to)[8],
                                              LoadFour load) {
    for (int half = 0; half < 8; half += 4) {
      F x[4];
      for (int i = 0; i < 4; ++i) x[i] = load(static_cast<const T*>(rows[i]) + d + half);
      const F a = __builtin_shuffle(x[0], x[1], Ints{0, 4, 1, 5});
      const F b = __builtin_shuffle(x[0], x[1], Ints{2, 6, 3, 7});
      const F c = __builtin_shuffle(x[2], x[3], Ints{0, 4, 1, 5});
      const F e = __builtin_shuffle(x[2], x[3], Ints{2, 6, 3, 7});
      to[half] = __builtin_shuffle(a, c, Ints{0, 1, 4, 5});
      to[half + 1] = __builtin_shuffle(a, c, Ints{2, 3, 6, 7});
      to[half + 2] = __builtin_shuffle(b, e, Ints{0, 1, 4, 5});
      to[half + 3] = __builtin_shuffle(b, e, Ints{2, 3, 6, 7});
    }
  }
  // Four keys by kDims dimensions in registers, as vectors of keys.
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
      LoadKeys<float>(rows, d, x, Generic::Load);
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

const AttentionIsa kAttentionGeneric = {AttentionLoop<Generic>::Attend,
                                        AttentionLoop<Generic>::Combine};

}  // namespace longspan
