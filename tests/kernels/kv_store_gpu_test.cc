// Storing keys and values on a device: the same bytes as the CPU in the whole pool, which shows
// both what was written and what was left alone; conversions code by code; graphs; refusals.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "kernels/cpu/thread_pool.h"
#include "kernels/kv_store.h"
#include "tests/kernels/device_array.h"

namespace longspan {
namespace {

class KvStoreOnGpu : public GpuKernel {};

constexpr DType kPoolTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16,
                                DType::kFloat8E4M3, DType::kInt8};

struct Shape {
  int32_t heads = 3;
  int32_t dim = 128;
  int32_t block_size = 16;
  int32_t num_blocks = 7;
  DType in = DType::kBFloat16;
  DType pool = DType::kBFloat16;
  bool heads_first = false;
  bool scale_per_block = true;
  bool scale_per_head = true;
  int64_t row_padding = 0;  // elements between the rows of heads of the input
  int64_t shift = 0;        // bytes off 16-byte alignment, of the input
};

std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << DTypeName(s.in) << " into " << DTypeName(s.pool) << ", heads " << s.heads << " dim "
             << s.dim << " block_size " << s.block_size << " heads_first " << s.heads_first
             << " scale per block " << s.scale_per_block << " per head " << s.scale_per_head
             << " padding " << s.row_padding << " shift " << s.shift;
}

// A problem on the host, and its copy on the device.
class Problem {
 public:
  Problem(const Shape& shape, std::vector<int64_t> slots, std::vector<float> values = {})
      : shape_(shape), slots_(std::move(slots)) {
    const int64_t in_row = shape.dim + shape.row_padding;
    const size_t count = slots_.size() * static_cast<size_t>(shape.heads * in_row);
    k_ = Encoded(shape.in, Cycled(values, count, 1));
    v_ = Encoded(shape.in, Cycled(values, count, 2));
    const int64_t elements = int64_t{shape.num_blocks} * shape.block_size * shape.heads * shape.dim;
    pool_k_.assign(static_cast<size_t>(elements * DTypeBytes(shape.pool)), std::byte{0x11});
    pool_v_.assign(pool_k_.size(), std::byte{0x22});
    for (int i = 0; i < shape.num_blocks * shape.heads; ++i) {
      k_scales_.push_back(values.empty() ? 0.011f * static_cast<float>(i + 1) : 1.0f);
      v_scales_.push_back(values.empty() ? 0.023f * static_cast<float>(i + 2) : 1.0f);
    }
    view_.k_block_stride = view_.v_block_stride =
        int64_t{shape.block_size} * shape.heads * shape.dim;
    const int64_t one = shape.dim;
    view_.k_token_stride = view_.v_token_stride = shape.heads_first ? one : one * shape.heads;
    view_.k_head_stride = view_.v_head_stride = shape.heads_first ? one * shape.block_size : one;
    view_.num_kv_heads = shape.heads;
    view_.head_dim = shape.dim;
    view_.block_size = shape.block_size;
    view_.dtype = shape.pool;
    view_.k_scale_block_stride = view_.v_scale_block_stride =
        shape.scale_per_block ? shape.heads : 0;
    view_.k_scale_head_stride = view_.v_scale_head_stride = shape.scale_per_head ? 1 : 0;
    params_.k_token_stride = params_.v_token_stride = shape.heads * in_row;
    params_.k_head_stride = params_.v_head_stride = in_row;
    params_.num_tokens = static_cast<int64_t>(slots_.size());
    params_.dtype = shape.in;
  }

  void RunOnCpu() {
    ThreadPool threads(1);
    KvPoolView view = view_;
    view.k = pool_k_.data();
    view.v = pool_v_.data();
    view.k_scales = k_scales_.data();
    view.v_scales = v_scales_.data();
    KvStoreParams params = params_;
    params.k = k_.data();
    params.v = v_.data();
    params.slot_mapping = slots_.data();
    ASSERT_EQ(KvStoreCpu(threads, view, params), KernelStatus::kOk);
  }
  KvStoreParams& params() { return params_; }
  const std::vector<std::byte>& pool_k() const { return pool_k_; }
  const std::vector<std::byte>& pool_v() const { return pool_v_; }

  struct OnDevice {
    explicit OnDevice(const Problem& p)
        : k(p.k_, p.shape_.shift),
          v(p.v_, p.shape_.shift),
          pool_k(p.pool_k_),
          pool_v(p.pool_v_),
          slots(p.slots_),
          k_scales(p.k_scales_),
          v_scales(p.v_scales_),
          view(p.view_),
          params(p.params_) {
      view.k = pool_k.data();
      view.v = pool_v.data();
      view.k_scales = k_scales.data();
      view.v_scales = v_scales.data();
      params.k = k.data();
      params.v = v.data();
      params.slot_mapping = slots.data();
    }
    DeviceBytes k, v, pool_k, pool_v;
    DeviceArray<int64_t> slots;
    DeviceArray<float> k_scales, v_scales;
    KvPoolView view;
    KvStoreParams params;
  };

 private:
  static std::vector<float> Cycled(const std::vector<float>& values, size_t count, uint32_t seed) {
    if (values.empty()) return NormalFloats(count, seed);
    std::vector<float> out(count);
    for (size_t i = 0; i < count; ++i) out[i] = values[i % values.size()];
    return out;
  }

  Shape shape_;
  std::vector<int64_t> slots_;
  std::vector<std::byte> k_, v_, pool_k_, pool_v_;
  std::vector<float> k_scales_, v_scales_;
  KvPoolView view_;
  KvStoreParams params_;
};

void ExpectCpuBytes(const Shape& shape, const std::vector<int64_t>& slots,
                    const std::vector<float>& values = {}) {
  SCOPED_TRACE(testing::Message() << shape);
  Problem problem(shape, slots, values);
  Problem::OnDevice device(problem);
  ASSERT_EQ(KvStoreGpu(device.view, device.params, nullptr), KernelStatus::kOk);
  problem.RunOnCpu();
  const int bytes = DTypeBytes(shape.pool);
  EXPECT_EQ(FirstDifference(device.pool_k.Bytes("keys"), problem.pool_k(), bytes), "") << "keys";
  EXPECT_EQ(FirstDifference(device.pool_v.Bytes("values"), problem.pool_v(), bytes), "")
      << "values";
}

const std::vector<int64_t> kSlots = {7, 0, -1, 111, 16, 15, 33, -5, 64};

TEST_F(KvStoreOnGpu, EveryPairOfTypesGivesTheCpusBytes) {
  for (const DType in : kFloatTypes) {
    for (const DType pool : kPoolTypes) {
      ExpectCpuBytes({.in = in, .pool = pool}, kSlots);
      ExpectCpuBytes({.in = in, .pool = pool, .heads_first = true}, kSlots);
    }
  }
}

TEST_F(KvStoreOnGpu, OddShapesTakeTheScalarPathToTheSameBytes) {
  for (const DType in : kFloatTypes) {
    for (const DType pool : kPoolTypes) {
      ExpectCpuBytes({.heads = 5, .dim = 20, .in = in, .pool = pool}, kSlots);
      ExpectCpuBytes(
          {.heads = 1, .dim = 1, .block_size = 1, .num_blocks = 113, .in = in, .pool = pool},
          kSlots);
      ExpectCpuBytes({.in = in, .pool = pool, .row_padding = 3}, kSlots);
      ExpectCpuBytes({.in = in, .pool = pool, .shift = 4}, kSlots);
      ExpectCpuBytes({.heads = 2, .dim = 80, .in = in, .pool = pool, .row_padding = 8}, kSlots);
    }
  }
}

TEST_F(KvStoreOnGpu, Trap_15_ScalesOfTensorHeadAndBlock) {
  for (const DType pool : {DType::kFloat8E4M3, DType::kInt8}) {
    for (const bool per_block : {false, true}) {
      for (const bool per_head : {false, true}) {
        ExpectCpuBytes({.pool = pool, .scale_per_block = per_block, .scale_per_head = per_head},
                       kSlots);
      }
    }
  }
}

TEST_F(KvStoreOnGpu, ManyTokens) {
  std::vector<int64_t> slots(4099);
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int64_t>(i * 7 % 4112);
  ExpectCpuBytes({.heads = 8, .block_size = 16, .num_blocks = 257, .pool = DType::kFloat8E4M3},
                 slots);
  ExpectCpuBytes({.heads = 8, .block_size = 16, .num_blocks = 257}, slots);
}

TEST_F(KvStoreOnGpu, Trap_16_EveryFloat8CodeAndEveryTieBetweenCodes) {
  std::vector<float> values;
  const float inf = std::numeric_limits<float>::infinity();
  for (int code = 0; code < 256; ++code) {
    values.push_back(Float8E4M3ToFloat(static_cast<uint8_t>(code)));
    if ((code & 0x7f) >= 0x7e) continue;
    const float middle = (values.back() + Float8E4M3ToFloat(static_cast<uint8_t>(code + 1))) / 2;
    values.insert(values.end(),
                  {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, inf * middle)});
  }
  values.insert(values.end(), {448.1f, 463.9f, 464.0f, 465.0f, 480.0f, 1e30f, inf, -inf, -448.1f,
                               -464.0f, -1e30f, -1e-40f, 1e-40f, -0x1p-10f, 0x1p-10f, -0.0f});
  while (values.size() % 16 != 0) values.push_back(0.0f);
  for (const int64_t shift : {0, 4}) {  // both paths
    ExpectCpuBytes({.heads = 1,
                    .dim = static_cast<int32_t>(values.size()),
                    .block_size = 2,
                    .num_blocks = 1,
                    .in = DType::kFloat32,
                    .pool = DType::kFloat8E4M3,
                    .shift = shift},
                   {1}, values);
  }
}

TEST_F(KvStoreOnGpu, EveryInt8CodeAndEveryTieBetweenCodes) {
  std::vector<float> values;
  const float inf = std::numeric_limits<float>::infinity();
  for (int code = -130; code <= 130; ++code) {
    const auto value = static_cast<float>(code);
    values.insert(values.end(), {value, value + 0.5f, std::nextafter(value + 0.5f, -inf),
                                 std::nextafter(value + 0.5f, inf)});
  }
  values.insert(values.end(), {inf, -inf, 1e30f, -1e30f, std::nanf(""), -0.0f, 1e-40f});
  while (values.size() % 16 != 0) values.push_back(0.0f);
  ExpectCpuBytes({.heads = 1,
                  .dim = static_cast<int32_t>(values.size()),
                  .block_size = 2,
                  .num_blocks = 1,
                  .in = DType::kFloat32,
                  .pool = DType::kInt8},
                 {1}, values);
}

TEST_F(KvStoreOnGpu, SixteenBitTypesRoundAsTheCpu) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> values = {0.0f,        -0.0f,          inf,       -inf,      65504.0f,
                               65519.9f,    65520.0f,       1e30f,     6e-8f,     2.9e-8f,
                               0x1p-25f,    -1e-40f,        3.4e38f,   -65520.0f, 1.00390625f,
                               1.01171875f, 1.00048828125f, 3.0009766f};
  for (uint32_t i = 0; values.size() < 4096; ++i) {
    const uint32_t bits = i * 2654435761u;  // all exponents
    const float x = std::bit_cast<float>(bits);
    values.push_back(std::isnan(x) ? 1.0f : x);
  }
  for (const DType pool : {DType::kFloat16, DType::kBFloat16}) {
    ExpectCpuBytes({.heads = 1, .dim = 4096, .num_blocks = 1, .in = DType::kFloat32, .pool = pool},
                   {3}, values);
  }
}

TEST_F(KvStoreOnGpu, NanStaysNan) {
  for (const DType in : kFloatTypes) {
    for (const DType pool : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      Problem problem({.heads = 1, .dim = 8, .num_blocks = 1, .in = in, .pool = pool}, {0},
                      {std::nanf("")});
      Problem::OnDevice device(problem);
      ASSERT_EQ(KvStoreGpu(device.view, device.params, nullptr), KernelStatus::kOk);
      const std::vector<float> got = Decoded(pool, device.pool_k.Bytes("keys"));
      for (int d = 0; d < 8; ++d) EXPECT_TRUE(std::isnan(got[d])) << DTypeName(pool) << " " << d;
    }
  }
}

// The table holds quarter turns and halves, so that every product is exact and so are the bits.
void ExpectRotatedCpuBytes(const Shape& shape, int32_t rotary_dim, RopePairs pairs) {
  SCOPED_TRACE(testing::Message() << shape << " rotary_dim " << rotary_dim << " pairs "
                                  << static_cast<int>(pairs));
  const std::vector<float> values = {1.0f, -2.0f, 0.5f, 3.0f, -0.25f, 7.0f, 1.5f};
  Problem problem(shape, kSlots, values);
  std::vector<float> table(kSlots.size() * static_cast<size_t>(rotary_dim));
  for (size_t i = 0; i < table.size(); ++i) {
    table[i] = std::vector<float>{0.0f, 1.0f, -1.0f, 0.5f, 0.25f}[i * 7 % 5];
  }
  problem.params().rotary_dim = rotary_dim;
  problem.params().pairs = pairs;
  Problem::OnDevice device(problem);
  DeviceArray<float> device_table(table);
  device.params.cos_sin = device_table.data();
  ASSERT_EQ(KvStoreGpu(device.view, device.params, nullptr), KernelStatus::kOk);
  problem.params().cos_sin = table.data();
  problem.RunOnCpu();
  const int bytes = DTypeBytes(shape.pool);
  EXPECT_EQ(FirstDifference(device.pool_k.Bytes("keys"), problem.pool_k(), bytes), "") << "keys";
  EXPECT_EQ(FirstDifference(device.pool_v.Bytes("values"), problem.pool_v(), bytes), "")
      << "values";
}

TEST_F(KvStoreOnGpu, KeysAreRotatedBeforeTheyAreStored) {
  for (const RopePairs pairs : {RopePairs::kHalfSplit, RopePairs::kInterleaved}) {
    for (const DType in : kFloatTypes) {
      for (const DType pool : kPoolTypes) {
        ExpectRotatedCpuBytes({.in = in, .pool = pool}, 128, pairs);
        ExpectRotatedCpuBytes({.in = in, .pool = pool}, 64, pairs);
        ExpectRotatedCpuBytes({.in = in, .pool = pool}, 24, pairs);
        ExpectRotatedCpuBytes({.in = in, .pool = pool}, 0, pairs);
        ExpectRotatedCpuBytes({.heads = 2, .dim = 21, .in = in, .pool = pool}, 18, pairs);
        ExpectRotatedCpuBytes({.in = in, .pool = pool, .shift = 4}, 32, pairs);
      }
    }
  }
}

TEST_F(KvStoreOnGpu, NoTokenAndOnlyUnstoredTokensChangeNothing) {
  Problem problem({}, {-1, -1});
  Problem::OnDevice device(problem);
  ASSERT_EQ(KvStoreGpu(device.view, device.params, nullptr), KernelStatus::kOk);
  device.params.num_tokens = 0;
  ASSERT_EQ(KvStoreGpu(device.view, device.params, nullptr), KernelStatus::kOk);
  EXPECT_EQ(FirstDifference(device.pool_k.Bytes("keys"), problem.pool_k(), 2), "");
  EXPECT_EQ(FirstDifference(device.pool_v.Bytes("values"), problem.pool_v(), 2), "");
}

TEST_F(KvStoreOnGpu, AGraphReadsTheSlotsOfEachReplay) {
  const Shape shape{.pool = DType::kFloat8E4M3};
  Problem first(shape, {3, 40});
  Problem::OnDevice device(first);
  ASSERT_EQ(KvStoreGpu(device.view, device.params, nullptr), KernelStatus::kOk);  // loads the code
  device.pool_k.Set(first.pool_k());
  device.pool_v.Set(first.pool_v());
  device.pool_k.Bytes("keys");  // waits for the default stream
  auto stream = GpuStream::Create();
  ASSERT_TRUE(stream.has_value());
  auto graph = GpuGraph::Capture(*stream, [&] {
    EXPECT_EQ(KvStoreGpu(device.view, device.params, stream->handle()), KernelStatus::kOk);
  });
  ASSERT_TRUE(graph.has_value());
  for (const std::vector<int64_t>& slots : {std::vector<int64_t>{3, 40}, {-1, 99}}) {
    device.slots.Set(slots);
    device.slots.Host("slots");  // waits
    device.pool_k.Set(first.pool_k());
    device.pool_k.Bytes("keys");
    ASSERT_TRUE(graph->Launch(*stream).ok());
    ASSERT_TRUE(stream->Synchronize().ok());
    Problem expected(shape, slots);
    expected.RunOnCpu();
    EXPECT_EQ(FirstDifference(device.pool_k.Bytes("keys"), expected.pool_k(), 1), "") << slots[0];
  }
}

TEST_F(KvStoreOnGpu, Trap_07_SlotsBeyond32BitsOfElements) {
  Problem problem(
      {.heads = 1, .num_blocks = 1, .pool = DType::kFloat8E4M3, .scale_per_block = false}, {5, 9});
  problem.RunOnCpu();
  Problem::OnDevice device(problem);
  const int64_t block = device.view.k_block_stride;
  const int64_t num_blocks = ((int64_t{1} << 31) + (int64_t{1} << 27)) / block;
  auto memory = DeviceBuffer::Allocate(num_blocks * block);
  if (!memory) GTEST_SKIP() << "no 2.3 GB of device memory";
  ASSERT_TRUE(memory->Fill(0x11, nullptr).ok());
  device.view.k = memory->data();
  const int64_t first = (num_blocks - 1) * 16;
  device.slots.Set({first + 5, first + 9});
  device.view.v_block_stride = 0;  // the values stay in their small pool
  ASSERT_EQ(KvStoreGpu(device.view, device.params, nullptr), KernelStatus::kOk);
  std::vector<std::byte> got(static_cast<size_t>(block));
  ASSERT_TRUE(memory->CopyTo(got, nullptr, (num_blocks - 1) * block).ok());
  EXPECT_EQ(FirstDifference(got, problem.pool_k(), 1), "");
  ASSERT_TRUE(memory->CopyTo(got, nullptr, 0).ok());
  EXPECT_EQ(got, std::vector<std::byte>(got.size(), std::byte{0x11})) << "the first block";
}

// No device is needed: the answer comes before anything is asked of one.
TEST(KvStoreRefusals, NameTheReason) {
  alignas(16) float memory[16] = {};
  int64_t slot = 0;
  KvPoolView good;
  good.k = good.v = memory;
  good.num_kv_heads = good.block_size = 1;
  good.head_dim = 8;
  good.dtype = DType::kInt8;
  good.k_scales = good.v_scales = memory;
  KvStoreParams tokens;
  tokens.k = tokens.v = memory;
  tokens.slot_mapping = &slot;
  tokens.num_tokens = 1;
  const auto store = [&](auto change) {
    KvPoolView pool = good;
    KvStoreParams params = tokens;
    change(pool, params);
    return KvStoreGpu(pool, params, nullptr);
  };
  using V = KvPoolView&;
  using P = KvStoreParams&;
  EXPECT_EQ(store([](V, P p) { p.num_tokens = 0; }), KernelStatus::kOk);
  EXPECT_EQ(store([](V, P p) { p.dtype = DType::kInt8; }), KernelStatus::kUnsupportedDType);
  EXPECT_EQ(store([](V v, P) { v.k_scales = nullptr; }), KernelStatus::kBadShape);
  EXPECT_EQ(store([](V v, P) { v.v_scales = nullptr; }), KernelStatus::kBadShape);
  EXPECT_EQ(store([](V v, P) { v.head_dim = 0; }), KernelStatus::kBadShape);
  EXPECT_EQ(store([](V v, P) { v.num_kv_heads = 0; }), KernelStatus::kBadShape);
  EXPECT_EQ(store([](V v, P) { v.block_size = 0; }), KernelStatus::kBadShape);
  EXPECT_EQ(store([](V v, P) { v.k = nullptr; }), KernelStatus::kBadShape);
  EXPECT_EQ(store([](V, P p) { p.v = nullptr; }), KernelStatus::kBadShape);
  EXPECT_EQ(store([](V, P p) { p.slot_mapping = nullptr; }), KernelStatus::kBadShape);
  EXPECT_EQ(store([](V, P p) { p.num_tokens = -1; }), KernelStatus::kBadShape);
  EXPECT_EQ(store([](V, P p) { p.num_tokens = int64_t{1} << 31; }), KernelStatus::kBadShape);
  EXPECT_EQ(store([&](V, P p) {
              p.cos_sin = memory;
              p.rotary_dim = 3;
            }),
            KernelStatus::kBadShape);
  EXPECT_EQ(store([&](V, P p) {
              p.cos_sin = memory;
              p.rotary_dim = 10;
            }),
            KernelStatus::kBadShape);
  EXPECT_EQ(store([](V v, P) { v.v_token_stride = -8; }), KernelStatus::kBadStride);
  EXPECT_EQ(store([](V, P p) { p.k_head_stride = -8; }), KernelStatus::kBadStride);
  EXPECT_EQ(store([](V, P p) { p.k = static_cast<const char*>(p.k) + 2; }),
            KernelStatus::kMisaligned);
  EXPECT_EQ(store([](V v, P) {
              v.dtype = DType::kFloat16;
              v.v = static_cast<char*>(v.v) + 1;
            }),
            KernelStatus::kMisaligned);
}

}  // namespace
}  // namespace longspan
