// The split plan alone: every (sequence, head, row, part) exactly once, borders at part multiples,
// balance on unequal lengths, and buffers that suffice.
#include "kernels/attention/attention_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <vector>

namespace longspan {
namespace {

struct Batch {
  std::vector<int32_t> cu = {0};
  std::vector<int32_t> lens;
  void Add(int32_t q_len, int32_t length) {
    cu.push_back(cu.back() + q_len);
    lens.push_back(length);
  }
};

struct Planned {
  std::vector<AttentionSpan> items, cuts;
  int64_t num_partials;
  int32_t max_splits;
  AttentionPlanBounds bounds;
};

AttentionPlanParams Params(const Batch& batch, int workers, int splits = 0) {
  AttentionPlanParams params;
  params.cu_seqlens_q = batch.cu;
  params.seq_lens = batch.lens;
  params.num_kv_heads = 3;
  params.group = 3;
  params.max_rows = 96;
  params.part_tokens = 512;
  params.tile_tokens = 64;
  params.num_workers = workers;
  params.num_splits = splits;
  return params;
}

Planned Plan(const AttentionPlanParams& params) {
  const int32_t longest = params.seq_lens.empty()
                              ? 0
                              : *std::max_element(params.seq_lens.begin(), params.seq_lens.end());
  Planned out;
  out.bounds = BoundAttentionPlan(params, static_cast<int64_t>(params.seq_lens.size()),
                                  params.cu_seqlens_q.back(), longest);
  std::vector<AttentionSpan> items(out.bounds.max_items), cuts(out.bounds.max_cuts);
  const AttentionPlan plan = PlanAttention(params, items, cuts);
  out.items.assign(plan.items.begin(), plan.items.end());
  out.cuts.assign(plan.cuts.begin(), plan.cuts.end());
  out.num_partials = plan.num_partials;
  out.max_splits = plan.max_splits;
  return out;
}

// Counts how often each (seq, head, row, part) is computed, and each partial written.
void ExpectExactCover(const AttentionPlanParams& params, const Planned& plan) {
  std::map<std::array<int64_t, 4>, int> computed;
  std::vector<int> written(plan.num_partials, 0);
  int64_t rows_written = 0;
  for (const AttentionSpan& item : plan.items) {
    int64_t partial = item.partial;
    for (int64_t part = item.part_begin; part < item.part_end; ++part) {
      for (int64_t head = item.head_begin; head < item.head_end; ++head) {
        for (int64_t row = item.row_begin; row < item.row_end; ++row) {
          ++computed[{item.seq, head, row, part}];
          if (item.partial >= 0) ++written.at(partial++);
        }
      }
    }
    if (item.partial < 0) {
      rows_written += int64_t{item.head_end - item.head_begin} * (item.row_end - item.row_begin);
    }
  }
  for (const AttentionSpan& cut : plan.cuts) {
    rows_written += int64_t{cut.head_end - cut.head_begin} * (cut.row_end - cut.row_begin);
  }
  std::map<std::array<int32_t, 3>, int32_t> pieces;  // of (seq, head, row)
  int32_t max_splits = 1;
  for (const AttentionSpan& item : plan.items) {
    max_splits = std::max(max_splits, ++pieces[{item.seq, item.head_begin, item.row_begin}]);
  }
  EXPECT_EQ(plan.max_splits, max_splits);
  EXPECT_EQ(rows_written, int64_t{params.cu_seqlens_q.back()} * params.group * params.num_kv_heads);
  EXPECT_TRUE(std::all_of(written.begin(), written.end(), [](int n) { return n == 1; }));
  int64_t expected = 0;
  for (size_t seq = 0; seq < params.seq_lens.size(); ++seq) {
    const int32_t rows = (params.cu_seqlens_q[seq + 1] - params.cu_seqlens_q[seq]) * params.group;
    for (int32_t row = 0; row < rows; ++row) {
      const KeyRange keys = VisibleKeys(params, static_cast<int32_t>(seq), row, row + 1);
      if (keys.begin >= keys.end) continue;
      for (int64_t part = keys.begin / 512; part * 512 < keys.end; ++part) {
        for (int32_t head = 0; head < params.num_kv_heads; ++head) {
          ++expected;
          ASSERT_EQ((computed[{static_cast<int64_t>(seq), head, row, part}]), 1)
              << "seq " << seq << " row " << row << " part " << part;
        }
      }
    }
  }
  // Rows of one item may see different parts; nothing is computed twice all the same.
  for (const auto& [key, count] : computed) ASSERT_EQ(count, 1);
  EXPECT_LE(expected, static_cast<int64_t>(computed.size()));
  EXPECT_LE(static_cast<int64_t>(plan.items.size()), plan.bounds.max_items);
  EXPECT_LE(static_cast<int64_t>(plan.cuts.size()), plan.bounds.max_cuts);
  EXPECT_LE(plan.num_partials, plan.bounds.max_partials);
}

TEST(AttentionPlan, CoversEveryRowAndPartOnceWhateverTheBatch) {
  std::mt19937 rng(3);
  for (int round = 0; round < 60; ++round) {
    Batch batch;
    const int num_seqs = static_cast<int>(rng() % 7);
    for (int i = 0; i < num_seqs; ++i) {
      const int32_t q_len = static_cast<int32_t>(rng() % 3 == 0 ? rng() % 90 : rng() % 3);
      batch.Add(q_len,
                static_cast<int32_t>(q_len + (rng() % 4 == 0 ? rng() % 20000 : rng() % 300)));
    }
    AttentionPlanParams params = Params(batch, 1 + static_cast<int>(rng() % 9),
                                        static_cast<int>(rng() % 3 == 0 ? rng() % 17 : 0));
    if (rng() % 3 == 0) params.window_left = static_cast<int32_t>(rng() % 3000);
    if (rng() % 4 == 0) params.causal = false;
    SCOPED_TRACE(round);
    ExpectExactCover(params, Plan(params));
  }
}

TEST(AttentionPlan, AnEmptyBatchHasNoWork) {
  Batch batch;
  EXPECT_TRUE(Plan(Params(batch, 2)).items.empty());
  batch.Add(0, 100);
  EXPECT_TRUE(Plan(Params(batch, 2)).items.empty());
}

TEST(AttentionPlan, ARowWithoutKeysStillHasAnItemToWriteItsZeros) {
  Batch batch;
  batch.Add(2, 0);
  const Planned plan = Plan(Params(batch, 2));
  ExpectExactCover(Params(batch, 2), plan);
  EXPECT_FALSE(plan.items.empty());
  EXPECT_TRUE(plan.cuts.empty());
}

TEST(AttentionPlan, OneLongSequenceAmongShortOnesIsCutSoThatNoWorkerWaits) {
  Batch batch;
  batch.Add(1, 262144);
  for (int i = 0; i < 63; ++i) batch.Add(1, 1024);
  for (const int workers : {2, 4, 16}) {
    const Planned plan = Plan(Params(batch, workers));
    // Greedy, in order, as a shared counter deals them.
    std::vector<int64_t> load(workers, 0);
    for (const AttentionSpan& item : plan.items) {
      *std::min_element(load.begin(), load.end()) +=
          int64_t{item.part_end - item.part_begin} * (item.head_end - item.head_begin);
    }
    const int64_t total = std::accumulate(load.begin(), load.end(), int64_t{0});
    EXPECT_LE(*std::max_element(load.begin(), load.end()) * workers, total * 115 / 100) << workers;
    EXPECT_EQ(plan.cuts.size(), 1u);
  }
}

TEST(AttentionPlan, AShortDecodeIsSharedByHeads) {
  Batch batch;
  batch.Add(1, 300);  // one part: only heads can be dealt out
  const Planned plan = Plan(Params(batch, 2));
  EXPECT_EQ(plan.items.size(), 3u);
  EXPECT_EQ(plan.num_partials, 0);
}

TEST(AttentionPlan, AWindowLimitsTheParts) {
  Batch batch;
  batch.Add(1, 100000);
  AttentionPlanParams params = Params(batch, 2);
  params.window_left = 1000;
  for (const AttentionSpan& item : Plan(params).items) {
    EXPECT_GE(item.part_begin, (99999 - 1000) / 512);
    EXPECT_LE(item.part_end, 100000 / 512 + 1);
  }
}

TEST(AttentionPlan, SplitsAreHonouredUpToOneAPart) {
  Batch batch;
  batch.Add(1, 2048);
  EXPECT_EQ(Plan(Params(batch, 1, 1)).cuts.size(), 0u);
  const Planned plan = Plan(Params(batch, 1, 100));
  EXPECT_EQ(plan.items.size() % 4, 0u);  // four parts
  for (const AttentionSpan& item : plan.items) EXPECT_EQ(item.part_end - item.part_begin, 1);
}

// 64 workers, a 512-token chunk at the end of a million tokens: cutting all of it would need 9
// million partials.
TEST(AttentionPlan, PartialsAreBoundedWhateverWorkersAndContext) {
  Batch batch;
  batch.Add(512, 1 << 20);
  batch.Add(1, 1 << 20);
  for (const int splits : {0, 16}) {
    const AttentionPlanParams params = Params(batch, 64, splits);
    const Planned plan = Plan(params);
    EXPECT_LE(plan.bounds.max_partials, kMaxPartials);
    EXPECT_LE(plan.num_partials, plan.bounds.max_partials);
    EXPECT_GT(plan.num_partials, kMaxPartials / 2);  // the budget is used
    int64_t rows = 0;
    for (const AttentionSpan& item : plan.items) {
      if (item.partial < 0)
        rows += int64_t{item.row_end - item.row_begin} * (item.head_end - item.head_begin);
    }
    for (const AttentionSpan& cut : plan.cuts) {
      rows += int64_t{cut.row_end - cut.row_begin} * (cut.head_end - cut.head_begin);
    }
    EXPECT_EQ(rows, int64_t{513} * params.group * params.num_kv_heads);
  }
}

TEST(AttentionPlan, DependsOnNothingButItsInputs) {
  Batch batch;
  batch.Add(3, 5000);
  batch.Add(1, 70);
  const Planned a = Plan(Params(batch, 3));
  const Planned b = Plan(Params(batch, 3));
  ASSERT_EQ(a.items.size(), b.items.size());
  for (size_t i = 0; i < a.items.size(); ++i) {
    EXPECT_EQ(std::memcmp(&a.items[i], &b.items[i], sizeof(AttentionSpan)), 0);
  }
}

}  // namespace
}  // namespace longspan
