// The prefill plan: every query row in exactly one piece, its keys as the definition says, longest
// first.
#include "kernels/attention/prefill/sm90_prefill_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace longspan {
namespace {

struct Batch {
  std::vector<int32_t> cu_seqlens_q, seq_lens, cu_seqlens_k;
  std::vector<Sm90PrefillPiece> Plan(int32_t rows_per_tile, bool causal,
                                     int32_t window_left) const {
    std::vector<Sm90PrefillPiece> out(NumSm90PrefillPieces(cu_seqlens_q, rows_per_tile));
    PlanSm90Prefill({cu_seqlens_q, seq_lens, cu_seqlens_k, rows_per_tile, causal, window_left},
                    out);
    return out;
  }
};

TEST(Sm90PrefillPlan, EveryRowIsInOnePieceWithTheKeysThatItsRowsSee) {
  std::mt19937 rng(7);
  auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng); };
  for (int round = 0; round < 300; ++round) {
    Batch batch;
    batch.cu_seqlens_q = {0};
    const int num_seqs = draw(0, 6);
    for (int seq = 0; seq < num_seqs; ++seq) {
      batch.cu_seqlens_q.push_back(batch.cu_seqlens_q.back() +
                                   (draw(0, 3) == 0 ? 0 : draw(1, 400)));
      batch.seq_lens.push_back(draw(0, 5) == 0 ? 0 : draw(1, 900));
    }
    const int32_t rows = draw(0, 1) == 0 ? 128 : 192;
    const bool causal = draw(0, 2) != 0;
    const int32_t window = draw(0, 2) == 0 ? draw(0, 200) : -1;
    std::vector<int> seen(batch.cu_seqlens_q.back(), 0);
    int32_t before = INT32_MAX;
    for (const Sm90PrefillPiece& piece : batch.Plan(rows, causal, window)) {
      ASSERT_GE(piece.num_rows, 1);
      ASSERT_LE(piece.num_rows, rows);
      const int32_t seq = piece.table_row;
      ASSERT_EQ(piece.length, batch.seq_lens[seq]);
      ASSERT_GE(piece.q_begin, batch.cu_seqlens_q[seq]);
      ASSERT_LE(piece.q_begin + piece.num_rows, batch.cu_seqlens_q[seq + 1]);
      int32_t begin = INT32_MAX, end = 0;
      for (int32_t row = 0; row < piece.num_rows; ++row) {
        ++seen[piece.q_begin + row];
        const int32_t position =
            piece.length - (batch.cu_seqlens_q[seq + 1] - (piece.q_begin + row));
        ASSERT_EQ(piece.first_position + row, position);
        for (int32_t key = 0; key < piece.length; ++key) {
          if ((causal && key > position) || (window >= 0 && key < position - window)) continue;
          begin = std::min(begin, key);
          end = std::max(end, key + 1);
        }
      }
      ASSERT_EQ(piece.key_end > piece.key_begin, end > 0);
      if (end > 0) {
        ASSERT_EQ(piece.key_begin, begin);
        ASSERT_EQ(piece.key_end, end);
      }
      ASSERT_LE(piece.key_end - piece.key_begin, before);
      before = piece.key_end - piece.key_begin;
    }
    ASSERT_TRUE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
  }
}

TEST(Sm90PrefillPlan, KeysWithoutBlocksStartWhereTheSequenceDoes) {
  Batch batch;
  batch.cu_seqlens_q = {0, 100, 300};
  batch.seq_lens = {100, 250};
  batch.cu_seqlens_k = {0, 100, 350};
  const auto pieces = batch.Plan(128, true, -1);
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(pieces[0].key_origin, 100);  // rows 128.. of the longer one see most
  EXPECT_EQ(pieces[0].key_end, 250);
  EXPECT_EQ(pieces[2].key_origin, 0);
  EXPECT_EQ(pieces[0].table_row, 0);
}

TEST(Sm90PrefillPlan, AMillionTokensAndWindowsStayWithin32Bits) {
  Batch batch;
  batch.cu_seqlens_q = {0, 2048};
  batch.seq_lens = {kSm90PrefillMaxLength};
  const auto pieces = batch.Plan(128, true, kSm90PrefillMaxLength);
  EXPECT_EQ(pieces[0].key_begin, 0);
  EXPECT_EQ(pieces[0].key_end, kSm90PrefillMaxLength);
}

}  // namespace
}  // namespace longspan
