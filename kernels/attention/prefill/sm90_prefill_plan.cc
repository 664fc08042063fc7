// Cuts query rows into pieces and orders them: see sm90_prefill_plan.h.
#include "kernels/attention/prefill/sm90_prefill_plan.h"

#include <algorithm>
#include <tuple>

#include "core/check.h"

namespace longspan {
namespace {

Sm90PrefillPiece MakePiece(const Sm90PrefillPlanParams& params, int32_t seq, int32_t row) {
  const int32_t q_begin = params.cu_seqlens_q[seq];
  const int32_t q_len = params.cu_seqlens_q[seq + 1] - q_begin;
  const int32_t length = params.seq_lens[seq];
  Sm90PrefillPiece piece;
  piece.table_row = params.cu_seqlens_k.empty() ? seq : 0;
  piece.key_origin = params.cu_seqlens_k.empty() ? 0 : params.cu_seqlens_k[seq];
  piece.q_begin = q_begin + row;
  piece.num_rows = std::min(params.rows_per_tile, q_len - row);
  piece.first_position = length - q_len + row;
  piece.length = length;
  piece.key_begin = 0;
  piece.key_end = length;
  if (params.causal) {
    piece.key_end = std::clamp(piece.first_position + piece.num_rows, 0, length);
  }
  if (params.window_left >= 0) {
    const int64_t first = int64_t{piece.first_position} - params.window_left;
    piece.key_begin = static_cast<int32_t>(std::clamp<int64_t>(first, 0, piece.key_end));
  }
  return piece;
}

}  // namespace

int64_t NumSm90PrefillPieces(std::span<const int32_t> cu_seqlens_q, int32_t rows_per_tile) {
  int64_t pieces = 0;
  for (size_t seq = 0; seq + 1 < cu_seqlens_q.size(); ++seq) {
    const int64_t q_len = int64_t{cu_seqlens_q[seq + 1]} - cu_seqlens_q[seq];
    pieces += (q_len + rows_per_tile - 1) / rows_per_tile;
  }
  return pieces;
}

void PlanSm90Prefill(const Sm90PrefillPlanParams& params, std::span<Sm90PrefillPiece> out) {
  CHECK(params.rows_per_tile > 0, "rows_per_tile {}", params.rows_per_tile);
  size_t num = 0;
  const auto num_seqs = static_cast<int32_t>(params.seq_lens.size());
  for (int32_t seq = 0; seq < num_seqs; ++seq) {
    const int32_t q_len = params.cu_seqlens_q[seq + 1] - params.cu_seqlens_q[seq];
    for (int32_t row = 0; row < q_len; row += params.rows_per_tile) {
      out[num++] = MakePiece(params, seq, row);
    }
  }
  CHECK(num == out.size(), "{} pieces, room for {}", num, out.size());
  std::sort(out.begin(), out.end(), [](const Sm90PrefillPiece& a, const Sm90PrefillPiece& b) {
    return std::make_tuple(b.key_end - b.key_begin, a.q_begin) <
           std::make_tuple(a.key_end - a.key_begin, b.q_begin);
  });
}

}  // namespace longspan
