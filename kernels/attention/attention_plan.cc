// The split plan: spans by row tiles, cut where one span would keep the others waiting.
#include "kernels/attention/attention_plan.h"

#include <algorithm>
#include <bit>

#include "core/check.h"
#include "core/checked_math.h"

namespace longspan {
namespace {

constexpr int64_t kTileOverhead = 8;  // a tile's loading and conversion, in rows of arithmetic
constexpr int64_t kSpansPerWorker =
    4;  // aim: the last worker idles for a quarter of its share at most

int32_t QueryRows(const AttentionPlanParams& params, int64_t seq) {
  return params.cu_seqlens_q[seq + 1] - params.cu_seqlens_q[seq];
}

// Visits every span before cutting: f(seq, row_begin, row_end).
template <typename F>
void ForEachRowTile(const AttentionPlanParams& params, int32_t max_rows, F&& f) {
  const int64_t num_seqs = static_cast<int64_t>(params.seq_lens.size());
  for (int64_t seq = 0; seq < num_seqs; ++seq) {
    const int64_t rows = int64_t{QueryRows(params, seq)} * params.group;
    for (int64_t begin = 0; begin < rows; begin += max_rows) {
      f(static_cast<int32_t>(seq), static_cast<int32_t>(begin),
        static_cast<int32_t>(std::min<int64_t>(rows, begin + max_rows)));
    }
  }
}

struct Cost {
  int32_t part_begin, part_end;
  int64_t value;  // per KV head
};

Cost SpanCost(const AttentionPlanParams& params, int32_t seq, int32_t row_begin, int32_t row_end) {
  const KeyRange keys = VisibleKeys(params, seq, row_begin, row_end);
  if (keys.begin >= keys.end) return {0, 0, 0};
  const int64_t tiles =
      CeilDiv<int64_t>(keys.end, params.tile_tokens) - keys.begin / params.tile_tokens;
  return {static_cast<int32_t>(keys.begin / params.part_tokens),
          static_cast<int32_t>(CeilDiv<int64_t>(keys.end, params.part_tokens)),
          tiles * (row_end - row_begin + kTileOverhead)};
}

// All KV heads of a sequence share an item while their rows fit (keys of neighbouring heads lie
// side by side in memory), unless that leaves workers idle.
int32_t HeadsPerItem(const AttentionPlanParams& params, int32_t rows, int64_t total_parts) {
  if (total_parts < kSpansPerWorker * params.num_workers) return 1;
  return std::clamp(params.max_rows / std::max(rows, 1), 1, params.num_kv_heads);
}

}  // namespace

KeyRange VisibleKeys(const AttentionPlanParams& params, int32_t seq, int32_t row_begin,
                     int32_t row_end) {
  const int64_t length = params.seq_lens[seq];
  const int64_t first = row_begin / params.group + length - QueryRows(params, seq);
  const int64_t last = (row_end - 1) / params.group + length - QueryRows(params, seq);
  KeyRange keys{0, length};
  if (params.causal) keys.end = std::min(keys.end, last + 1);
  if (params.window_right >= 0) keys.end = std::min(keys.end, last + params.window_right + 1);
  if (params.window_left >= 0) keys.begin = std::max<int64_t>(0, first - params.window_left);
  keys.end = std::max(keys.end, keys.begin);
  return keys;
}

AttentionPlanBounds BoundAttentionPlan(const AttentionPlanParams& params, int64_t max_num_seqs,
                                       int64_t max_total_q, int64_t max_seq_len) {
  const int64_t heads = params.num_kv_heads;
  const int64_t total_rows = max_total_q * params.group;
  const int64_t tiles = (total_rows / params.max_rows + max_num_seqs) * heads;
  const int64_t parts = CeilDiv<int64_t>(max_seq_len, params.part_tokens);
  if (params.num_splits > 0) {
    return {tiles * params.num_splits, tiles, std::min(total_rows * heads * parts, kMaxPartials)};
  }
  // A span is cut only when it costs more than two shares, so fewer than half the shares are cut,
  // and a cut never has more pieces than shares it costs, rounded up.
  const int64_t shares = kSpansPerWorker * params.num_workers;
  const int64_t cuts = std::min(tiles, shares / 2);
  const int64_t partials = std::min(cuts * params.max_rows, total_rows * heads) * parts;
  return {tiles + 2 * shares, cuts, std::min(partials, kMaxPartials)};
}

AttentionPlan PlanAttention(const AttentionPlanParams& params, std::span<AttentionSpan> item_buffer,
                            std::span<AttentionSpan> cut_buffer) {
  int64_t total_cost = 0;
  int64_t total_parts = 0;
  ForEachRowTile(params, params.max_rows, [&](int32_t seq, int32_t begin, int32_t end) {
    const Cost cost = SpanCost(params, seq, begin, end);
    total_cost += cost.value * params.num_kv_heads;
    total_parts += cost.part_end - cost.part_begin;
  });
  const int64_t share =
      std::max<int64_t>(1, CeilDiv(total_cost, kSpansPerWorker * params.num_workers));

  AttentionPlan plan;
  int64_t num_items = 0;
  int64_t num_cuts = 0;
  auto add_item = [&](const AttentionSpan& item) {
    CHECK(num_items < static_cast<int64_t>(item_buffer.size()), "{} items", num_items);
    item_buffer[num_items++] = item;
  };
  auto add_span = [&](AttentionSpan span, int64_t cost) {
    const int64_t num_parts = span.part_end - span.part_begin;
    int64_t pieces = 1;
    if (params.num_splits > 0) {
      pieces = std::min<int64_t>(params.num_splits, num_parts);
    } else if (cost > 2 * share) {
      pieces = std::min(CeilDiv(cost, share), num_parts);
    }
    const int64_t rows = int64_t{span.head_end - span.head_begin} * (span.row_end - span.row_begin);
    if (plan.num_partials + num_parts * rows > kMaxPartials) pieces = 1;
    if (pieces <= 1) return add_item(span);
    CHECK(num_cuts < static_cast<int64_t>(cut_buffer.size()), "{} cuts", num_cuts);
    plan.max_splits = std::max(plan.max_splits, static_cast<int32_t>(pieces));
    span.partial = plan.num_partials;
    cut_buffer[num_cuts++] = span;
    plan.num_partials += num_parts * rows;
    for (int64_t piece = 0; piece < pieces; ++piece) {
      AttentionSpan item = span;
      item.part_begin = static_cast<int32_t>(span.part_begin + num_parts * piece / pieces);
      item.part_end = static_cast<int32_t>(span.part_begin + num_parts * (piece + 1) / pieces);
      item.partial = span.partial + (item.part_begin - span.part_begin) * rows;
      add_item(item);
    }
  };
  ForEachRowTile(params, params.max_rows, [&](int32_t seq, int32_t begin, int32_t end) {
    const Cost cost = SpanCost(params, seq, begin, end);
    const int32_t step = HeadsPerItem(params, end - begin, total_parts);
    for (int32_t head = 0; head < params.num_kv_heads; head += step) {
      const int32_t head_end = std::min(params.num_kv_heads, head + step);
      add_span({seq, head, head_end, begin, end, cost.part_begin, cost.part_end, -1},
               cost.value * (head_end - head));
    }
  });

  // Costly items first, so that the last ones to be taken are small: workers end together.
  plan.items = item_buffer.first(num_items);
  plan.cuts = cut_buffer.first(num_cuts);
  auto weight = [&](const AttentionSpan& item) {
    return int64_t{item.part_end - item.part_begin} * (item.head_end - item.head_begin) *
           (item.row_end - item.row_begin + kTileOverhead);
  };
  std::sort(plan.items.begin(), plan.items.end(),
            [&](const AttentionSpan& a, const AttentionSpan& b) { return weight(a) > weight(b); });
  return plan;
}

}  // namespace longspan
