// Builds paged attention problems for tests: logical tensors that are functions of (sequence,
// position, head, d) alone, laid out in blocks of any size and order, with poison wherever a kernel
// must not look and guard words wherever it must not write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/attention/attention_cpu.h"
#include "kernels/attention/attention_params.h"
#include "kernels/cpu/thread_pool.h"

namespace longspan {

// Of tokens that belong to nobody. e4m3 has two NaNs in place of NaN and infinity, int8 its
// extremes.
enum class KvFill : uint8_t { kZeros, kNan, kInf };
// Of 8-bit pools: how many scales there are. Those of blocks that belong to nobody are NaN.
enum class KvScaling : uint8_t { kTensor, kHead, kBlockAndHead };
// Which of their own new tokens queries see, in place of causal: their ancestors in a random tree,
// or any, even none.
enum class TreeMask : uint8_t { kNone, kAncestors, kAny };

struct AttentionCase {
  std::vector<int32_t> q_lens = {1};
  std::vector<int32_t> kv_lens = {1};
  std::vector<uint32_t> content;  // which logical sequence each is; empty: its index
  int32_t num_q_heads = 9;
  int32_t num_kv_heads = 3;
  int32_t head_dim = 64;
  int32_t block_size = 16;
  DType q_dtype = DType::kFloat32;
  DType kv_dtype = DType::kFloat16;
  float scale = 0.125f;
  float softcap = 0.0f;
  bool causal = true;
  int32_t window_left = -1;
  int32_t window_right = -1;
  bool sinks = false;
  bool alibi = false;
  KvScaling scaling = KvScaling::kBlockAndHead;
  TreeMask tree = TreeMask::kNone;
  bool heads_first = false;  // pool as [block, head, token, d] instead of [block, token, head, d]
  float magnitude = 1.0f;    // factor of queries
  KvFill fill = KvFill::kNan;
  uint32_t block_order_seed = 1;  // 0: ascending ids
  int32_t spare_blocks = 3;       // poisoned blocks that no sequence owns
  int32_t extra_table_entries = 2;
  bool rows = false;  // every sequence has as many blocks, one behind the other: a cache of rows
};

// One problem in memory. Movable, not copyable.
class PagedAttention {
 public:
  explicit PagedAttention(const AttentionCase& spec);
  PagedAttention(PagedAttention&&) = default;

  AttentionParams& params() { return params_; }
  int32_t* block_table(int seq) { return table_.data() + seq * params_.block_table_stride; }
  float* sinks() { return sinks_.data(); }
  // The place of a scale of an 8-bit pool.
  float& scale(bool values, int64_t block, int32_t kv_head) {
    const KvScales& s = params_.scales;
    return values ? v_scales_[block * s.v_block_stride + kv_head * s.v_head_stride]
                  : k_scales_[block * s.k_block_stride + kv_head * s.k_head_stride];
  }

  // Runs the kernel in a workspace of exactly the promised size full of garbage. False, with a
  // message on stderr, when the status is not kOk or a guard word changed.
  bool Run(ThreadPool& pool, const CpuAttentionOptions& options = {});

  // Whole allocations, poison and guards included: what a test copies to a device and back.
  // params() points into them.
  struct Memory {
    std::vector<std::byte>&q, &o, &k, &v;
    std::vector<float>& lse;
    std::vector<int32_t>& block_table;
    std::vector<float>&k_scales, &v_scales;
    std::vector<uint64_t>& tree_mask;
  };
  Memory memory() { return {q_, o_, k_, v_, lse_, table_, k_scales_, v_scales_, tree_mask_}; }
  int64_t num_blocks() const {
    return static_cast<int64_t>(k_.size()) /
           (params_.k_block_stride * DTypeBytes(params_.kv_dtype));
  }
  // Blocks of a sequence's row; of spec.rows.
  int64_t row_blocks() const { return row_blocks_; }
  // Output and lse are guard words again, everywhere: a run that writes nothing shows.
  void ResetOutput();
  // False, with a message on stderr, when something was written outside the output rows.
  bool GuardsIntact() const;

  // Output rows [begin, end) of a sequence, o then lse, as bytes.
  std::vector<std::byte> RowBits(int seq, int32_t begin, int32_t end) const;
  std::vector<std::byte> AllBits() const;

  // Overwrites one key (or value) row of a sequence, all of head `kv_head`, with x. Of an 8-bit
  // pool x is what is stored.
  void SetKv(int seq, int64_t position, int32_t kv_head, bool values, float x);
  float output(int64_t token, int32_t q_head, int32_t d) const;
  float lse(int64_t token, int32_t q_head) const {
    return lse_[(token + 1) * params_.num_q_heads + q_head];
  }

 private:
  void FillQueries(const AttentionCase& spec);
  void FillPool(const AttentionCase& spec);
  void MakeScales(const AttentionCase& spec, int64_t num_blocks);
  void FillScales(int64_t block);
  void FillTree(const AttentionCase& spec);

  AttentionParams params_;
  std::vector<int32_t> cu_seqlens_;
  std::vector<int32_t> seq_lens_;
  std::vector<int32_t> table_;
  std::vector<float> sinks_;
  std::vector<float> slopes_;
  std::vector<std::byte> q_, o_, k_, v_;
  std::vector<float> lse_;  // a guard token, the rows, a guard token
  std::vector<float> k_scales_, v_scales_;
  std::vector<uint64_t> tree_mask_;
  int64_t row_blocks_ = 0;
};

// Every instruction set this machine has.
std::vector<CpuAttentionIsa> SupportedAttentionIsas();
const char* AttentionIsaName(CpuAttentionIsa isa);

}  // namespace longspan
