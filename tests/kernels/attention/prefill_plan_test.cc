// The prefill plan: every row in one block, every visible key in its block's range, the longest
// first. Without a device.
#include "kernels/attention/prefill/prefill_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace longspan {
namespace {

struct Batch {
  std::vector<int32_t> q_lens, lengths, cu;
  PrefillPlanParams params;

  Batch(std::vector<int32_t> q, std::vector<int32_t> kv, int32_t group, int32_t block_rows)
      : q_lens(std::move(q)), lengths(std::move(kv)), cu{0} {
    for (const int32_t q_len : q_lens) cu.push_back(cu.back() + q_len);
    params = {cu, lengths, group, block_rows};
  }
  std::vector<PrefillBlock> Plan(int64_t spare = 0) const {
    const int64_t most = PrefillMaxBlocks(cu.back(), static_cast<int64_t>(lengths.size()),
                                          params.group, params.block_rows);
    std::vector<PrefillBlock> blocks(most + spare, PrefillBlock{9, 9, 9, 9, 9, 9, 9, 9});
    const int64_t num = PlanPrefill(params, blocks);
    for (size_t i = num; i < blocks.size(); ++i) EXPECT_EQ(blocks[i].num_rows, 0);
    blocks.resize(num);
    return blocks;
  }
};

bool Sees(const PrefillPlanParams& p, int64_t position, int64_t key) {
  if (p.causal && key > position) return false;
  if (p.window_left >= 0 && key < position - p.window_left) return false;
  return p.window_right < 0 || key <= position + p.window_right;
}

// By brute force over every row and key.
void ExpectRight(const Batch& batch) {
  std::map<std::pair<int32_t, int32_t>, int> times;
  int32_t tiles_before = INT32_MAX;
  for (const PrefillBlock& block : batch.Plan(3)) {
    const int32_t q_len = batch.q_lens[block.table_row];
    ASSERT_EQ(block.q_len, q_len);
    ASSERT_EQ(block.q_begin, batch.cu[block.table_row]);
    ASSERT_EQ(block.length, batch.lengths[block.table_row]);
    ASSERT_LE(block.num_rows, batch.params.block_rows);
    EXPECT_LE(PrefillTiles(block), tiles_before);
    tiles_before = PrefillTiles(block);
    int32_t first_seen = INT32_MAX, end_seen = -1;
    for (int32_t row = block.first_row; row < block.first_row + block.num_rows; ++row) {
      ++times[{block.table_row, row}];
      const int64_t position = row / batch.params.group + int64_t{block.length} - q_len;
      for (int32_t key = 0; key < block.length; ++key) {
        if (!Sees(batch.params, position, key)) continue;
        first_seen = std::min(first_seen, key);
        end_seen = std::max(end_seen, key + 1);
      }
    }
    if (end_seen < 0) {
      EXPECT_EQ(PrefillTiles(block), 0);
    } else {
      EXPECT_EQ(block.key_begin, first_seen);
      EXPECT_EQ(block.key_end, end_seen);
      EXPECT_EQ(PrefillTiles(block), (end_seen - 1) / 64 - first_seen / 64 + 1);
    }
  }
  size_t rows = 0;
  for (const int32_t q_len : batch.q_lens) rows += q_len * batch.params.group;
  ASSERT_EQ(times.size(), rows);
  for (const auto& [row, num] : times) ASSERT_EQ(num, 1);
}

TEST(PrefillPlan, EveryRowOnceWithExactlyTheKeysThatItsBlockSees) {
  std::mt19937 random(3);
  for (int round = 0; round < 400; ++round) {
    std::vector<int32_t> q_lens, lengths;
    for (unsigned i = random() % 5; i > 0; --i) {
      lengths.push_back(static_cast<int32_t>(random() % 200));
      q_lens.push_back(static_cast<int32_t>(random() % (lengths.back() + 5)));
    }
    Batch batch(q_lens, lengths, 1 + static_cast<int32_t>(random() % 8), 64 << random() % 2);
    batch.params.causal = random() % 2 == 0;
    batch.params.window_left = static_cast<int32_t>(random() % 100) - 30;
    batch.params.window_right = static_cast<int32_t>(random() % 100) - 30;
    batch.params.window_left = std::max(-1, batch.params.window_left);
    batch.params.window_right = std::max(-1, batch.params.window_right);
    SCOPED_TRACE(testing::Message() << "round " << round);
    ExpectRight(batch);
  }
}

TEST(PrefillPlan, Trap_12_NothingAndOnlyEmptySequences) {
  EXPECT_TRUE(Batch({}, {}, 4, 128).Plan().empty());
  EXPECT_TRUE(Batch({0, 0}, {10, 0}, 4, 128).Plan().empty());
  EXPECT_EQ(Batch({0, 1, 0}, {10, 0, 5}, 4, 128).Plan().size(), 1u);
}

TEST(PrefillPlan, HugeWindowsAndLengthsStayWithin32Bits) {
  Batch batch({3, 5}, {kPrefillMaxLength, 2}, 1, 64);
  batch.params.causal = false;
  batch.params.window_left = batch.params.window_right = INT32_MAX;
  const auto blocks = batch.Plan();
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_EQ(blocks[0].key_begin, 0);
  EXPECT_EQ(blocks[0].key_end, kPrefillMaxLength);
  EXPECT_EQ(blocks[1].key_end, 2);
  EXPECT_EQ(PrefillWindow(INT32_MAX), kPrefillMaxLength);
  EXPECT_EQ(PrefillWindow(-1), -1);
}

TEST(PrefillPlan, TheLongestBlocksOfACausalPromptComeFirst) {
  const auto blocks = Batch({1000}, {1000}, 1, 128).Plan();
  ASSERT_EQ(blocks.size(), 8u);
  for (size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(blocks[i].first_row, 128 * (7 - static_cast<int32_t>(i)));
  }
}

}  // namespace
}  // namespace longspan
