// How device code goes through a CTA's range of the plan, and which rows a part of it has.
#pragma once

#include <cstdint>

#include "kernels/attention/decode/decode_params.h"

namespace longspan {

// The part of a unit that a CTA computes: its tiles [begin, end) of num_tiles.
struct DecodePart {
  GpuDecodeSequence sequence;
  int32_t head, first_row;  // KV head, packed row
  int32_t begin, end, num_tiles;
};

// Walks a CTA's range unit by unit; producer and consumers each have one and see the same parts.
class DecodeWalk {
 public:
  __device__ __forceinline__ DecodeWalk(const DecodeArgs& args, const GpuDecodeWork& work)
      : args_(args),
        sequence_(work.first),
        index_(work.sequence),
        unit_(work.unit),
        tile_(work.tile),
        left_(work.num_tiles) {}

  __device__ __forceinline__ bool done() const { return left_ == 0; }

  __device__ __forceinline__ DecodePart Next() {
    DecodePart part;
    part.sequence = sequence_;
    const int32_t row_tiles = GpuDecodeRowTiles(sequence_, args_.group);
    part.head = unit_ / row_tiles;
    part.first_row = unit_ % row_tiles * kGpuDecodeRows;
    part.num_tiles = GpuDecodeTiles(sequence_, args_.window_left);
    part.begin = tile_;
    part.end = min(part.num_tiles, tile_ + left_);
    left_ -= part.end - part.begin;
    tile_ = 0;
    if (++unit_ == args_.num_kv_heads * row_tiles) {
      unit_ = 0;
      ++index_;
      if (left_ > 0) sequence_ = args_.sequences[index_];  // used a unit later: not waited for
    }
    return part;
  }

 private:
  const DecodeArgs& args_;
  GpuDecodeSequence sequence_;
  int32_t index_, unit_, tile_, left_;
};

// Row of q, o and lse that a packed row of the part is.
__device__ __forceinline__ int64_t DecodeToken(const DecodeArgs& args, const DecodePart& part,
                                               int row) {
  return part.sequence.q_begin + (part.first_row + row) / args.group;
}
__device__ __forceinline__ int32_t DecodeQueryHead(const DecodeArgs& args, const DecodePart& part,
                                                   int row) {
  return part.head * args.group + (part.first_row + row) % args.group;
}
__device__ __forceinline__ int32_t DecodeNumRows(const DecodeArgs& args, const DecodePart& part) {
  return min(part.sequence.q_len * args.group - part.first_row, kGpuDecodeRows);
}

}  // namespace longspan
