// Cuts the line of tiles in equal shares of cost, then tells every CTA where its first and last
// unit begin and end.
#include "kernels/attention/decode/gpu_decode_plan.h"

#include <algorithm>

#include "core/check.h"

namespace longspan {
namespace {

constexpr int64_t kUnitCost = 3;  // filling the ring, merging and writing, in tiles

struct Position {
  int32_t sequence = 0;
  int32_t unit = 0;
  int32_t tile = 0;
  int64_t line = 0;  // tiles of everything before
};

// Walks the sequences once, answering where on the line a cost is reached; costs ascend.
class Line {
 public:
  Line(std::span<const GpuDecodeSequence> sequences, const GpuDecodePlanParams& params)
      : sequences_(sequences), params_(params), window_(GpuDecodeWindow(params.window_left)) {
    if (!sequences_.empty()) Load();
  }

  int64_t tiles() const { return tiles_; }
  int64_t units() const { return units_; }
  int64_t cost() const { return units_ * (tiles_ + kUnitCost); }

  // Ends what is before the sequence that is looked at; false behind the last one.
  bool Next() {
    cost_before_ += cost();
    tiles_before_ += units_ * tiles_;
    if (++index_ == sequences_.size()) return false;
    Load();
    return true;
  }

  // The first kUnitCost of a unit belong to its first tile, so a cut there is at its beginning.
  Position At(int64_t cost_here) {
    while (cost_here - cost_before_ >= cost() && Next()) {
    }
    if (index_ == sequences_.size()) {
      return {static_cast<int32_t>(index_), 0, 0, tiles_before_};
    }
    const int64_t unit = (cost_here - cost_before_) / (tiles_ + kUnitCost);
    const int64_t in_unit = (cost_here - cost_before_) % (tiles_ + kUnitCost);
    const int64_t tile = std::max<int64_t>(0, in_unit - kUnitCost);
    return {static_cast<int32_t>(index_), static_cast<int32_t>(unit), static_cast<int32_t>(tile),
            tiles_before_ + unit * tiles_ + tile};
  }

 private:
  void Load() {
    const GpuDecodeSequence& sequence = sequences_[index_];
    tiles_ = GpuDecodeTiles(sequence, window_);
    units_ = int64_t{params_.num_kv_heads} * GpuDecodeRowTiles(sequence, params_.group);
  }

  std::span<const GpuDecodeSequence> sequences_;
  const GpuDecodePlanParams& params_;
  int32_t window_;
  size_t index_ = 0;
  int64_t tiles_ = 0, units_ = 0;
  int64_t cost_before_ = 0, tiles_before_ = 0;
};

// Sequences with query rows, in order.
std::span<GpuDecodeSequence> ListSequences(const GpuDecodePlanParams& params,
                                           GpuDecodeSequence* to) {
  size_t num = 0;
  for (size_t seq = 0; seq < params.seq_lens.size(); ++seq) {
    const int32_t q_begin = params.cu_seqlens_q[seq];
    const int32_t q_len = params.cu_seqlens_q[seq + 1] - q_begin;
    const int32_t length = params.seq_lens[seq];
    CHECK(q_len >= 0 && int64_t{q_len} * params.group < kGpuDecodeMaxLength && length >= 0 &&
              length <= kGpuDecodeMaxLength,
          "sequence {}: q_len {}, length {}", seq, q_len, length);
    if (q_len > 0) to[num++] = {static_cast<int32_t>(seq), length, q_begin, q_len};
  }
  return {to, num};
}

// works[i] begins at a position; its num_tiles are set. Fills in who else has parts of the units
// at its two ends. A range never ends inside a unit without the next one going on with it: cuts
// within a unit lie at different tiles.
void LinkParts(std::span<GpuDecodeWork> works) {
  const auto num = static_cast<int32_t>(works.size());
  auto begins_in_unit = [&](int32_t cta) {
    return cta < num && works[cta].num_tiles > 0 && works[cta].tile > 0;
  };
  int32_t first = 0;  // CTA that the unit at the current cut began in
  for (int32_t cta = 0; cta < num; ++cta) {
    GpuDecodeWork& work = works[cta];
    if (work.num_tiles == 0) continue;
    work.first_cta = work.tile == 0 ? cta : first;
    const bool same_unit = begins_in_unit(cta + 1) && works[cta + 1].sequence == work.sequence &&
                           works[cta + 1].unit == work.unit;
    first = same_unit ? work.first_cta : cta;
  }
  for (int32_t cta = num - 1; cta >= 0; --cta) {
    GpuDecodeWork& work = works[cta];
    work.last_cta_of_first = work.last_cta_of_last = cta;
    if (work.num_tiles == 0 || !begins_in_unit(cta + 1)) continue;
    const GpuDecodeWork& next = works[cta + 1];
    work.last_cta_of_last = next.last_cta_of_first;
    if (next.sequence == work.sequence && next.unit == work.unit) {
      work.last_cta_of_first = next.last_cta_of_first;
    }
  }
}

}  // namespace

int64_t GpuDecodePlanBytes(int32_t num_ctas, int64_t max_num_seqs) {
  return int64_t{sizeof(GpuDecodeWork)} * num_ctas +
         int64_t{sizeof(GpuDecodeSequence)} * max_num_seqs;
}

int64_t PlanGpuDecode(const GpuDecodePlanParams& params, std::span<std::byte> out) {
  const int64_t num_seqs = static_cast<int64_t>(params.seq_lens.size());
  CHECK(params.num_ctas > 0 && params.num_kv_heads > 0 && params.group > 0 &&
        params.min_range_cost > 0);
  CHECK(static_cast<int64_t>(out.size()) >= GpuDecodePlanBytes(params.num_ctas, num_seqs));
  const std::span<GpuDecodeWork> works{reinterpret_cast<GpuDecodeWork*>(out.data()),
                                       static_cast<size_t>(params.num_ctas)};
  const std::span<GpuDecodeSequence> sequences =
      ListSequences(params, reinterpret_cast<GpuDecodeSequence*>(out.data() + works.size_bytes()));

  int64_t total = 0;
  Line sum(sequences, params);
  if (!sequences.empty()) {
    do total += sum.cost();
    while (sum.Next());
  }
  const int64_t num_ranges = std::clamp<int64_t>(total / params.min_range_cost, 1, params.num_ctas);
  Line line(sequences, params);
  Position begin;
  for (int64_t cta = 0; cta < params.num_ctas; ++cta) {
    GpuDecodeWork& work = works[cta] = {};
    if (cta >= num_ranges || sequences.empty()) continue;
    // (total / n) * i + (total % n) * i / n: total * i / n without overflow.
    const int64_t next = cta + 1;
    const Position end =
        line.At(total / num_ranges * next + total % num_ranges * next / num_ranges);
    CHECK(end.line - begin.line <= INT32_MAX, "{} tiles in one range", end.line - begin.line);
    work.sequence = begin.sequence;
    work.unit = begin.unit;
    work.tile = begin.tile;
    work.num_tiles = static_cast<int32_t>(end.line - begin.line);
    if (work.num_tiles > 0) work.first = sequences[begin.sequence];
    begin = end;
  }
  LinkParts(works);
  return GpuDecodePlanBytes(params.num_ctas, static_cast<int64_t>(sequences.size()));
}

}  // namespace longspan
