// The pool's memory: blocks never overlap, copies and poison touch exactly what they name, and a
// pool that cannot be had is refused with figures.
#include "kvcache/kv_pool.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

namespace longspan {
namespace {

constexpr KvPoolShape kSmall{.num_layers = 3,
                             .num_kv_heads = 2,
                             .head_dim = 8,
                             .block_size = 4,
                             .num_blocks = 5,
                             .dtype = DType::kFloat32};

float* Element(const KvPool& pool, int32_t layer, bool value, int32_t block, int32_t token,
               int32_t head, int32_t d) {
  const KvLayerView view = pool.layer(layer);
  float* base = static_cast<float*>(value ? view.v : view.k);
  return base + block * view.block_stride + token * view.token_stride + head * view.head_stride + d;
}

// Calls f(layer, value, block, token, head, d) for every element.
template <typename F>
void ForEach(const KvPoolShape& s, F f) {
  for (int32_t layer = 0; layer < s.num_layers; ++layer)
    for (const bool value : {false, true})
      for (int32_t block = 0; block < s.num_blocks; ++block)
        for (int32_t token = 0; token < s.block_size; ++token)
          for (int32_t head = 0; head < s.num_kv_heads; ++head)
            for (int32_t d = 0; d < s.head_dim; ++d) f(layer, value, block, token, head, d);
}

// Writes a different number into every element.
void Number(const KvPool& pool) {
  float next = 0;
  ForEach(pool.shape(), [&](auto... at) { *Element(pool, at...) = next++; });
}

TEST(KvPool, ElementsAreDistinctAndFillThePool) {
  auto pool = KvPool::Create(kSmall);
  ASSERT_TRUE(pool.ok());
  EXPECT_EQ((*pool)->size_bytes(), 3 * 2 * 5 * 4 * 2 * 8 * 4);
  Number(**pool);
  float next = 0;
  ForEach(kSmall, [&](auto... at) { ASSERT_EQ(*Element(**pool, at...), next++); });
  EXPECT_EQ(next * sizeof(float), (*pool)->size_bytes());
}

TEST(KvPool, BytesPerTokenCountKeysAndValuesOfAllLayers) {
  const KvPoolShape smollm2{.num_layers = 30,
                            .num_kv_heads = 3,
                            .head_dim = 64,
                            .block_size = 16,
                            .num_blocks = 512,
                            .dtype = DType::kFloat16};
  EXPECT_EQ(smollm2.BytesPerToken(), 23040);
  EXPECT_EQ(smollm2.TotalBytes(), 23040 * 8192);
}

TEST(KvPool, CopyBlockCopiesTheFirstTokensOfEveryLayerAndNothingElse) {
  auto pool = KvPool::Create(kSmall);
  ASSERT_TRUE(pool.ok());
  Number(**pool);
  (*pool)->CopyBlock(BlockId{1}, BlockId{4}, 3);
  float next = 0;
  ForEach(kSmall, [&](int32_t layer, bool value, int32_t block, int32_t token, int32_t head,
                      int32_t d) {
    const float number = next++;
    const bool copied = block == 4 && token < 3;
    const float expected = copied ? *Element(**pool, layer, value, 1, token, head, d) : number;
    ASSERT_EQ(*Element(**pool, layer, value, block, token, head, d), expected);
  });
}

TEST(KvPool, CopyOfNoTokensAndOntoItselfChangesNothing) {
  auto pool = KvPool::Create(kSmall);
  ASSERT_TRUE(pool.ok());
  Number(**pool);
  (*pool)->CopyBlock(BlockId{1}, BlockId{4}, 0);
  (*pool)->CopyBlock(BlockId{2}, BlockId{2}, 4);
  float next = 0;
  ForEach(kSmall, [&](auto... at) { ASSERT_EQ(*Element(**pool, at...), next++); });
}

TEST(KvPool, PoisonIsNanInOneBlockOnly) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    KvPoolShape shape = kSmall;
    shape.dtype = dtype;
    auto pool = KvPool::Create(shape);
    ASSERT_TRUE(pool.ok());
    (*pool)->Poison(BlockId{3});
    const auto* bytes = static_cast<const unsigned char*>((*pool)->layer(1).k);
    const int64_t block_bytes = (*pool)->layer(1).block_stride * DTypeBytes(dtype);
    for (int64_t i = 0; i < block_bytes; ++i) {
      ASSERT_EQ(bytes[2 * block_bytes + i], 0) << i;
      ASSERT_EQ(bytes[3 * block_bytes + i], 0xff) << i;
      ASSERT_EQ(bytes[4 * block_bytes + i], 0) << i;
    }
  }
  EXPECT_TRUE(std::isnan(Float16ToFloat(0xffff)));
  EXPECT_TRUE(std::isnan(BFloat16ToFloat(0xffff)));
}

TEST(KvPool, BadShapesAreInvalid) {
  for (int32_t KvPoolShape::*field :
       {&KvPoolShape::num_layers, &KvPoolShape::num_kv_heads, &KvPoolShape::head_dim,
        &KvPoolShape::block_size, &KvPoolShape::num_blocks}) {
    for (const int32_t value : {0, -1}) {
      KvPoolShape shape = kSmall;
      shape.*field = value;
      EXPECT_EQ(KvPool::Create(shape).status().code(), absl::StatusCode::kInvalidArgument);
    }
  }
}

TEST(KvPool, Fault_D1_APoolLargerThanTheMachineIsRefusedWithFigures) {
  KvPoolShape shape = kSmall;
  shape.num_layers = 30;
  shape.num_kv_heads = 3;
  shape.head_dim = 64;
  shape.block_size = 16;
  shape.num_blocks = 1'000'000'000;
  const Status status = KvPool::Create(shape).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(StatusMessage(status).find("737280000000000 bytes"), std::string::npos) << status;
  EXPECT_NE(StatusMessage(status).find("blocks fit"), std::string::npos) << status;
}

TEST(KvPool, Fault_D1_ASizeBeyondTheAddressRangeIsRefused) {
  constexpr int32_t kHuge = 2'147'483'647;
  const KvPoolShape shape{.num_layers = 100,
                          .num_kv_heads = 1000,
                          .head_dim = 256,
                          .block_size = 256,
                          .num_blocks = kHuge,
                          .dtype = DType::kFloat32};
  EXPECT_FALSE(shape.TotalBytes().has_value());
  EXPECT_EQ(KvPool::Create(shape).status().code(), absl::StatusCode::kResourceExhausted);
}

// Offsets of blocks behind 2^31 elements and bytes must not wrap; the pool is sparse.
TEST(KvPool, Case_038_BlocksBehindThirtyTwoBitOffsetsAreDistinct) {
  const KvPoolShape shape{.num_layers = 1,
                          .num_kv_heads = 8,
                          .head_dim = 128,
                          .block_size = 16,
                          .num_blocks = 140'000,
                          .dtype = DType::kFloat16};
  auto pool = KvPool::Create(shape);
  if (!pool.ok()) GTEST_SKIP() << "not enough memory for a sparse pool: " << pool.status();
  const KvLayerView view = (*pool)->layer(0);
  EXPECT_EQ(view.block_stride, 32768);
  const std::vector<int32_t> blocks = {0, 1, 65535, 65536, 65537, 131071, 131072, 131073, 139999};
  for (const int32_t block : blocks) {
    static_cast<uint16_t*>(view.k)[block * view.block_stride] = static_cast<uint16_t>(block % 251);
  }
  (*pool)->CopyBlock(BlockId{131073}, BlockId{139998}, 16);
  for (const int32_t block : blocks) {
    EXPECT_EQ(static_cast<uint16_t*>(view.k)[block * view.block_stride], block % 251);
  }
  EXPECT_EQ(static_cast<uint16_t*>(view.k)[int64_t{139998} * view.block_stride], 131073 % 251);
}

}  // namespace
}  // namespace longspan
