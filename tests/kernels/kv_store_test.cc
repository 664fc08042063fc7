// Writing the KV cache: where rows land for any strides, how they are rounded or
// quantised, what is left alone, what is refused.
#include "kernels/kv_store.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu/thread_pool.h"

namespace longspan {
namespace {

constexpr int32_t kHeads = 3, kDim = 20, kBlockSize = 4, kBlocks = 6;

struct Pool {
  std::vector<std::byte> k, v;
  KvPoolView view;

  explicit Pool(DType dtype, bool heads_first = false) {
    const int64_t elements = int64_t{kBlocks} * kBlockSize * kHeads * kDim;
    k.assign(elements * DTypeBytes(dtype), std::byte{0x11});
    v.assign(elements * DTypeBytes(dtype), std::byte{0x22});
    view.k = k.data();
    view.v = v.data();
    view.k_block_stride = view.v_block_stride = kBlockSize * kHeads * kDim;
    view.k_token_stride = view.v_token_stride = heads_first ? kDim : kHeads * kDim;
    view.k_head_stride = view.v_head_stride = heads_first ? kBlockSize * kDim : kDim;
    view.num_kv_heads = kHeads;
    view.head_dim = kDim;
    view.block_size = kBlockSize;
    view.dtype = dtype;
  }
  uint32_t Bits(bool values, int64_t slot, int32_t head, int32_t d) const {
    const int64_t index = slot / kBlockSize * view.k_block_stride +
                          slot % kBlockSize * view.k_token_stride + head * view.k_head_stride + d;
    const int64_t bytes = DTypeBytes(view.dtype);
    uint32_t bits = 0;
    std::memcpy(&bits, (values ? v : k).data() + index * bytes, bytes);
    return bits;
  }
};

uint32_t Rounded(DType dtype, float x) {
  if (dtype == DType::kFloat32) return std::bit_cast<uint32_t>(x);
  return dtype == DType::kFloat16 ? FloatToFloat16(x) : FloatToBFloat16(x);
}

struct Rows {
  std::vector<float> k, v;
  KvStoreParams params;
  std::vector<int64_t> slots;

  explicit Rows(std::vector<int64_t> where) : slots(std::move(where)) {
    std::mt19937 rng(2);
    std::normal_distribution<float> normal;
    k.resize(slots.size() * 100);
    v.resize(slots.size() * 100);
    for (float& x : k) x = normal(rng);
    for (float& x : v) x = normal(rng);
    params = {.k = k.data(),
              .v = v.data(),
              .k_token_stride = 100,
              .k_head_stride = 30,
              .v_token_stride = 100,
              .v_head_stride = 25,
              .slot_mapping = slots.data(),
              .num_tokens = static_cast<int64_t>(slots.size())};
  }
};

TEST(KvStore, RowsLandInTheirSlotsRoundedToNearestEven) {
  ThreadPool threads(2);
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const bool heads_first : {false, true}) {
      Pool pool(dtype, heads_first);
      Rows rows({7, 0, -1, 23, 6});
      ASSERT_EQ(KvStoreCpu(threads, pool.view, rows.params), KernelStatus::kOk);
      for (size_t token = 0; token < rows.slots.size(); ++token) {
        if (rows.slots[token] < 0) continue;
        for (int32_t head = 0; head < kHeads; ++head) {
          for (int32_t d = 0; d < kDim; ++d) {
            ASSERT_EQ(pool.Bits(false, rows.slots[token], head, d),
                      Rounded(dtype, rows.k[token * 100 + head * 30 + d]));
            ASSERT_EQ(pool.Bits(true, rows.slots[token], head, d),
                      Rounded(dtype, rows.v[token * 100 + head * 25 + d]));
          }
        }
      }
      // A token place that nobody named keeps its bytes.
      EXPECT_EQ(pool.Bits(false, 8, 0, 0) & 0xffffu, 0x1111u);
      EXPECT_EQ(pool.Bits(true, 5, 2, 19) & 0xffffu, 0x2222u);
    }
  }
}

TEST(KvStore, SpecialValuesRoundAsTheFormatSays) {
  ThreadPool threads(1);
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> special = {
      0.0f,        -0.0f,       inf,           -inf,    65504.0f,       65519.9f,   65520.0f,
      1e30f,       6e-8f,       2.9e-8f,       -1e-40f, 1.00048828125f, 3.0009766f, 0.333333f,
      1.00390625f, 1.01171875f, std::nanf(""), 3.4e38f, -65520.0f,      5.96e-8f};
  ASSERT_EQ(special.size(), size_t{kDim});
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    Pool pool(dtype);
    const int64_t slot = 3;
    std::vector<float> row(kHeads * kDim);
    for (size_t i = 0; i < row.size(); ++i) row[i] = special[i % kDim];
    ASSERT_EQ(KvStoreCpu(threads, pool.view,
                         {.k = row.data(),
                          .v = row.data(),
                          .k_head_stride = kDim,
                          .v_head_stride = kDim,
                          .slot_mapping = &slot,
                          .num_tokens = 1}),
              KernelStatus::kOk);
    for (int32_t d = 0; d < kDim; ++d) {
      const uint32_t bits = pool.Bits(false, slot, 1, d);
      if (std::isnan(special[d])) {
        EXPECT_TRUE(std::isnan(dtype == DType::kFloat16
                                   ? Float16ToFloat(static_cast<uint16_t>(bits))
                                   : BFloat16ToFloat(static_cast<uint16_t>(bits))));
      } else {
        EXPECT_EQ(bits, Rounded(dtype, special[d])) << special[d];
      }
    }
  }
}

TEST(KvStore, Trap_07_SlotsBeyond32BitsOfElements) {
  const int64_t bytes = int64_t{20} << 30;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no 20 GiB of address space";
  ThreadPool threads(1);
  KvPoolView view = Pool(DType::kFloat16).view;
  view.k = memory;
  view.v =
      static_cast<uint16_t*>(memory) + kDim;  // beside the keys: block stride has room for both
  view.k_block_stride = view.v_block_stride = 4096;
  view.k_head_stride = view.v_head_stride = 2 * kDim;
  view.k_token_stride = view.v_token_stride = 2 * kDim * kHeads;
  Rows rows({int64_t{4} * 1048575 + 3, int64_t{4} * 1048576, int64_t{4} * 2097153 + 1});
  ASSERT_EQ(KvStoreCpu(threads, view, rows.params), KernelStatus::kOk);
  for (size_t token = 0; token < 3; ++token) {
    const int64_t index =
        rows.slots[token] / 4 * 4096 + rows.slots[token] % 4 * view.k_token_stride;
    EXPECT_EQ(static_cast<uint16_t*>(view.k)[index], FloatToFloat16(rows.k[token * 100]));
    EXPECT_EQ(static_cast<uint16_t*>(view.v)[index], FloatToFloat16(rows.v[token * 100]));
  }
  munmap(memory, bytes);
}

// Distinct odd scales for K and V, so that none can stand for another.
struct Scales {
  std::vector<float> k, v;
  Scales() : k(kBlocks * kHeads), v(kBlocks * kHeads) {
    for (size_t i = 0; i < k.size(); ++i) {
      k[i] = 0.013f * static_cast<float>(i + 1);
      v[i] = 0.017f * static_cast<float>(i + 3);
    }
  }
};

TEST(KvStore, Trap_15_EightBitPoolsHoldValuesDividedByTheScaleOfBlockAndHead) {
  ThreadPool threads(2);
  const Scales scales;
  for (const DType dtype : {DType::kFloat8E4M3, DType::kInt8}) {
    for (const int64_t block_stride : {0, kHeads}) {
      for (const int64_t head_stride : {0, 1}) {
        Pool pool(dtype);
        pool.view.k_scales = scales.k.data();
        pool.view.v_scales = scales.v.data();
        pool.view.k_scale_block_stride = pool.view.v_scale_block_stride = block_stride;
        pool.view.k_scale_head_stride = pool.view.v_scale_head_stride = head_stride;
        Rows rows({7, 0, -1, 23});
        ASSERT_EQ(KvStoreCpu(threads, pool.view, rows.params), KernelStatus::kOk);
        for (size_t token = 0; token < rows.slots.size(); ++token) {
          if (rows.slots[token] < 0) continue;
          for (int32_t head = 0; head < kHeads; ++head) {
            const int64_t scale =
                rows.slots[token] / kBlockSize * block_stride + head * head_stride;
            const float x = rows.k[token * 100 + head * 30 + 5] / scales.k[scale];
            const float y = rows.v[token * 100 + head * 25 + 5] / scales.v[scale];
            const bool e4m3 = dtype == DType::kFloat8E4M3;
            EXPECT_EQ(pool.Bits(false, rows.slots[token], head, 5),
                      e4m3 ? FloatToFloat8E4M3(x) : static_cast<uint8_t>(FloatToInt8(x)));
            EXPECT_EQ(pool.Bits(true, rows.slots[token], head, 5),
                      e4m3 ? FloatToFloat8E4M3(y) : static_cast<uint8_t>(FloatToInt8(y)));
          }
        }
        EXPECT_EQ(pool.Bits(false, 8, 0, 0), 0x11u);
      }
    }
  }
}

TEST(KvStore, SixteenBitRowsAreWidenedFirst) {
  ThreadPool threads(1);
  std::vector<uint16_t> row(kHeads * kDim);
  for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<uint16_t>(0x3c00 + 37 * i);
  const int64_t slot = 9;
  for (const DType from : {DType::kFloat16, DType::kBFloat16}) {
    for (const DType to : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      Pool pool(to);
      ASSERT_EQ(KvStoreCpu(threads, pool.view,
                           {.k = row.data(),
                            .v = row.data(),
                            .k_head_stride = kDim,
                            .v_head_stride = kDim,
                            .slot_mapping = &slot,
                            .num_tokens = 1,
                            .dtype = from}),
                KernelStatus::kOk);
      for (int32_t d = 0; d < kDim; ++d) {
        const uint16_t bits = row[kDim + d];
        const float x = from == DType::kFloat16 ? Float16ToFloat(bits) : BFloat16ToFloat(bits);
        EXPECT_EQ(pool.Bits(true, slot, 1, d), Rounded(to, x));
      }
    }
  }
}

TEST(KvStore, KeysAreRotatedBeforeTheyAreRoundedAndValuesAreNot) {
  ThreadPool threads(1);
  std::vector<float> table(5 * 16);
  for (size_t i = 0; i < table.size(); ++i) table[i] = 0.1f * static_cast<float>(i % 16) - 0.7f;
  for (const RopePairs pairs : {RopePairs::kHalfSplit, RopePairs::kInterleaved}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      Pool fused(dtype), apart(dtype);
      Rows rows({7, 0, -1, 23, 6});
      KvStoreParams params = rows.params;
      params.cos_sin = table.data();
      params.rotary_dim = 16;
      params.pairs = pairs;
      ASSERT_EQ(KvStoreCpu(threads, fused.view, params), KernelStatus::kOk);
      ASSERT_EQ(RopeCpu(threads, {.x = rows.k.data(),
                                  .token_stride = 100,
                                  .head_stride = 30,
                                  .num_tokens = 5,
                                  .num_heads = kHeads,
                                  .head_dim = kDim,
                                  .rotary_dim = 16,
                                  .pairs = pairs,
                                  .cos_sin = table.data()}),
                KernelStatus::kOk);
      ASSERT_EQ(KvStoreCpu(threads, apart.view, rows.params), KernelStatus::kOk);
      EXPECT_EQ(fused.k, apart.k);
      EXPECT_EQ(fused.v, apart.v);
      params.rotary_dim = kDim + 2;
      EXPECT_EQ(KvStoreCpu(threads, fused.view, params), KernelStatus::kBadShape);
      params.rotary_dim = 3;
      EXPECT_EQ(KvStoreCpu(threads, fused.view, params), KernelStatus::kBadShape);
    }
  }
}

TEST(KvStore, WhatIsNotSupportedIsRefused) {
  ThreadPool threads(1);
  KvPoolView view = Pool(DType::kInt8).view;
  EXPECT_EQ(KvStoreCpu(threads, view, {}), KernelStatus::kBadShape);  // no scales
  const Scales scales;
  view.k_scales = scales.k.data();
  EXPECT_EQ(KvStoreCpu(threads, view, {}), KernelStatus::kBadShape);
  view.v_scales = scales.v.data();
  EXPECT_EQ(KvStoreCpu(threads, view, {}), KernelStatus::kOk);  // 0 tokens
  EXPECT_EQ(KvStoreCpu(threads, view, {.dtype = DType::kInt8}), KernelStatus::kUnsupportedDType);
  view.block_size = 0;
  EXPECT_EQ(KvStoreCpu(threads, view, {}), KernelStatus::kBadShape);
}

}  // namespace
}  // namespace longspan
