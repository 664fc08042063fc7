// Constants that the plan, the kernels of every instruction set and their tests share, and the
// piece of work that the driver hands to a kernel. Internal to kernels/attention.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention/attention_params.h"
#include "kernels/attention/attention_plan.h"

namespace longspan {

inline constexpr int kAttentionTileTokens = 64;   // keys per tile; tiles lie at absolute multiples
inline constexpr int kAttentionPartTokens = 512;  // keys per part; a multiple of the tile
inline constexpr int kAttentionMaxHeadDim = 256;
inline constexpr int kAttentionLanes = 16;  // floats of a running sum, padding of rows

static_assert(kAttentionPartTokens % kAttentionTileTokens == 0);

constexpr int PaddedHeadDim(int head_dim) {
  return (head_dim + kAttentionLanes - 1) / kAttentionLanes * kAttentionLanes;
}

// A partial result in memory: o[padded head_dim] not yet divided, then m (base-2 logit) and l, then
// padding to a multiple of 64 bytes.
constexpr int PartialFloats(int head_dim) { return PaddedHeadDim(head_dim) + kAttentionLanes; }

// Packed rows a worker holds at once: enough to make the conversion of a tile cheap, few enough
// that its buffers stay in a 1 MiB L2 cache.
constexpr int AttentionMaxRows(int head_dim) { return head_dim <= 128 ? 192 : 96; }

// Buffers of one worker, all 64-byte aligned; D = padded head_dim, R =
// AttentionMaxRows.
struct AttentionScratch {
  float* q;           // [R][D], scaled
  float* o;           // [R][D], running output of the part
  float* o_total;     // [R][PartialFloats], running output of all parts so far
  float* s;           // [R][tile], scores, then weights
  float* l;           // [R][kAttentionLanes], running denominators of the part
  float* m;           // [R], running maxima of the part
  float* alpha;       // [R], rescale factors of the tile
  float* k;           // [D][tile], keys of a tile, transposed
  float* v;           // [tile][D], values of a tile
  const void** rows;  // [2][2][tile]: of this tile and the next, where keys lie, then values
};
int64_t AttentionScratchBytes(int head_dim);
AttentionScratch CarveAttentionScratch(std::byte* memory, int head_dim);

struct AttentionTask {
  const AttentionParams* params;
  AttentionSpan span;
  KeyRange keys;    // what its rows may see
  float* partials;  // the span's first partial; null: write the output
  AttentionScratch scratch;
};

// The kernels of one instruction set.
struct AttentionIsa {
  // Computes a span. Never reads a key outside VisibleKeys, nor a table entry of a block without
  // one.
  void (*attend)(const AttentionTask& task);
  // Merges the parts of one row of a cut in index order and writes its output. partials: that row's
  // first partial; part_stride in floats.
  void (*combine)(const AttentionParams& params, const float* partials, int64_t part_stride,
                  int num_parts, float* o_total, int64_t token, int32_t q_head);
};

extern const AttentionIsa kAttentionGeneric;
#if defined(__x86_64__)
extern const AttentionIsa kAttentionAvx2;            // AVX2, FMA, F16C
extern const AttentionIsa kAttentionAvx512;          // AVX-512 F, BW, DQ, VL
extern const AttentionIsa kAttentionAvx512BFloat16;  // and BF16: products of bfloat16; no float KV
#endif

}  // namespace longspan
