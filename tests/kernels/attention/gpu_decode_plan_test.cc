// The GPU's decode plan: every tile once, equal shares, and CTAs that know who has the other parts.
#include "kernels/attention/decode/gpu_decode_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>
#include <vector>

namespace longspan {
namespace {

struct Batch {
  std::vector<int32_t> q_lens;
  std::vector<int32_t> kv_lens;
  int32_t num_kv_heads = 8;
  int32_t group = 4;
  int32_t window_left = -1;
  int32_t num_ctas = 132;
  int32_t min_range_cost = 4;
};

struct Plan {
  explicit Plan(const Batch& batch) {
    std::vector<int32_t> cu = {0};
    for (const int32_t q_len : batch.q_lens) cu.push_back(cu.back() + q_len);
    bytes.resize(GpuDecodePlanBytes(batch.num_ctas, static_cast<int64_t>(batch.q_lens.size())) /
                 16);
    const int64_t used = PlanGpuDecode({cu, batch.kv_lens, batch.num_kv_heads, batch.group,
                                        batch.window_left, batch.num_ctas, batch.min_range_cost},
                                       std::as_writable_bytes(std::span(bytes)));
    const auto* first = reinterpret_cast<const GpuDecodeWork*>(bytes.data());
    works = {first, static_cast<size_t>(batch.num_ctas)};
    sequences = {reinterpret_cast<const GpuDecodeSequence*>(first + batch.num_ctas),
                 (static_cast<size_t>(used) - works.size_bytes()) / sizeof(GpuDecodeSequence)};
  }
  struct alignas(16) Line {
    std::byte bytes[16];
  };
  std::vector<Line> bytes;
  std::span<const GpuDecodeWork> works;
  std::span<const GpuDecodeSequence> sequences;
};

// A CTA's part of a unit, as the kernel walks it.
struct Part {
  int32_t cta, begin, end, first_cta, last_cta;
  bool is_first_of_range;
};
using Unit = std::pair<int32_t, int32_t>;  // sequence, unit

std::map<Unit, std::vector<Part>> Walk(const Batch& batch, const Plan& plan) {
  std::map<Unit, std::vector<Part>> parts;
  for (int32_t cta = 0; cta < batch.num_ctas; ++cta) {
    const GpuDecodeWork& work = plan.works[cta];
    int32_t sequence = work.sequence, unit = work.unit, tile = work.tile;
    for (int32_t left = work.num_tiles; left > 0;) {
      const GpuDecodeSequence& seq = plan.sequences[sequence];
      const int32_t tiles = GpuDecodeTiles(seq, batch.window_left);
      const int32_t end = std::min(tiles, tile + left);
      const bool begins = tile == 0;
      parts[{sequence, unit}].push_back({cta, tile, end, begins ? cta : work.first_cta,
                                         begins ? work.last_cta_of_last : work.last_cta_of_first,
                                         left == work.num_tiles});
      left -= end - tile;
      tile = 0;
      if (++unit == batch.num_kv_heads * GpuDecodeRowTiles(seq, batch.group)) unit = 0, ++sequence;
    }
  }
  return parts;
}

// Everything that the kernel relies on.
void ExpectSound(const Batch& batch) {
  const Plan plan(batch);
  const auto parts = Walk(batch, plan);
  size_t num_units = 0;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const GpuDecodeSequence& seq = plan.sequences[i];
    ASSERT_EQ(seq.q_len, batch.q_lens[seq.table_row]);
    ASSERT_EQ(seq.length, batch.kv_lens[seq.table_row]);
    const int32_t units = batch.num_kv_heads * GpuDecodeRowTiles(seq, batch.group);
    num_units += units;
    for (int32_t unit = 0; unit < units; ++unit) {
      const auto found = parts.find({static_cast<int32_t>(i), unit});
      ASSERT_NE(found, parts.end()) << "unit " << unit << " of sequence " << i;
      int32_t next = 0;
      for (const Part& part : found->second) {
        ASSERT_EQ(part.begin, next);
        next = part.end;
        // A part that begins a unit and is cut must be the last of its CTA: two partials suffice.
        ASSERT_TRUE(part.begin == 0 || part.is_first_of_range);
        if (found->second.size() == 1) continue;
        ASSERT_EQ(part.first_cta, found->second.front().cta);
        ASSERT_EQ(part.last_cta, found->second.back().cta);
      }
      ASSERT_EQ(next, GpuDecodeTiles(seq, batch.window_left));
      ASSERT_EQ(found->second.back().cta - found->second.front().cta + 1,
                static_cast<int32_t>(found->second.size()))
          << "a CTA without a part of the unit lies between those that have one";
    }
  }
  ASSERT_EQ(parts.size(), num_units) << "a CTA ran past the last unit";
  for (const GpuDecodeWork& work : plan.works) {
    if (work.num_tiles == 0) continue;
    const GpuDecodeSequence& seq = plan.sequences[work.sequence];
    ASSERT_EQ(work.first.table_row, seq.table_row);
    ASSERT_EQ(work.first.length, seq.length);
  }
}

TEST(GpuDecodePlan, EveryTileOnceForTheBatchesOfTheBenchmark) {
  for (const auto& [num, length] : {std::pair{1, 1 << 20},
                                    {8, 131072},
                                    {64, 32768},
                                    {1, 131072},
                                    {1, 8192},
                                    {8, 8192},
                                    {256, 2048},
                                    {1, 1},
                                    {1, 65}}) {
    SCOPED_TRACE(testing::Message() << num << " x " << length);
    ExpectSound({std::vector(num, 1), std::vector(num, length)});
  }
  Batch skewed = {std::vector(64, 1), std::vector(64, 1024)};
  skewed.kv_lens[0] = 262144;
  ExpectSound(skewed);
}

TEST(GpuDecodePlan, Trap_12_NoSequencesNoRowsNoLengths) {
  ExpectSound({{}, {}});
  ExpectSound({{0, 0}, {5, 0}});
  ExpectSound({{1, 1, 1}, {0, 0, 0}});
  ExpectSound({{0, 1, 0}, {9, 0, 9}});
}

TEST(GpuDecodePlan, RandomBatches) {
  std::mt19937 random(7);
  auto below = [&](int32_t n) { return static_cast<int32_t>(random() % static_cast<uint32_t>(n)); };
  for (int round = 0; round < 3000; ++round) {
    Batch batch;
    const int32_t num = below(12);
    for (int32_t i = 0; i < num; ++i) {
      batch.q_lens.push_back(below(4) == 0 ? 0 : 1 + below(6));
      batch.kv_lens.push_back(below(5) == 0 ? 0 : below(1 << (1 + below(14))));
    }
    batch.num_kv_heads = 1 + below(9);
    batch.group = 1 + below(17);
    batch.window_left = below(2) == 0 ? -1 : below(300);
    batch.num_ctas = 1 + below(300);
    batch.min_range_cost = 1 + below(40);
    SCOPED_TRACE(round);
    ExpectSound(batch);
    if (HasFatalFailure()) return;
  }
}

TEST(GpuDecodePlan, SharesOfASkewedBatchDifferByLessThanTwoUnits) {
  Batch batch = {std::vector(64, 1), std::vector(64, 1024)};
  batch.kv_lens[0] = 262144;
  const Plan plan(batch);
  const auto [least, most] = std::minmax_element(
      plan.works.begin(), plan.works.end(),
      [](const GpuDecodeWork& a, const GpuDecodeWork& b) { return a.num_tiles < b.num_tiles; });
  // 40,832 tiles and 512 units of overhead 3 on 132 CTAs.
  EXPECT_LE(most->num_tiles, 322);
  EXPECT_GE(least->num_tiles, 256);
}

TEST(GpuDecodePlan, SmallBatchesAreNotCutToCrumbs) {
  // 16 tiles and the unit's 3.
  for (const auto& [min_range_cost, ctas] : {std::pair{4, 4}, {2, 9}, {1, 16}, {10, 1}, {100, 1}}) {
    const Plan plan(Batch{{1}, {1024}, 1, 4, -1, 132, min_range_cost});
    const auto busy = std::count_if(plan.works.begin(), plan.works.end(),
                                    [](const GpuDecodeWork& work) { return work.num_tiles > 0; });
    EXPECT_LE(busy, ctas);
    EXPECT_GE(busy, (ctas + 1) / 2);
  }
}

TEST(GpuDecodePlan, Trap_24_WindowsCostWhatTheyShow) {
  Batch batch = {{1}, {1000000}};
  batch.window_left = 1023;
  const Plan plan(batch);
  int64_t tiles = 0;
  for (const GpuDecodeWork& work : plan.works) tiles += work.num_tiles;
  EXPECT_LE(tiles, 8 * 17);
}

TEST(GpuDecodePlan, ExtremeLengthsAndWindowsDoNotOverflow) {
  for (const int32_t window : {-1, 0, INT32_MAX}) {
    ExpectSound({{1, 4}, {kGpuDecodeMaxLength, 3}, 2, 1, window, 132});
  }
}

}  // namespace
}  // namespace longspan
