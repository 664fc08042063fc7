// Noise for q, K and V that depends on the logical place alone, scattered over shuffled blocks; the
// case's fill wherever no sequence owns a token; guards between and around the output's rows.
#include "tests/support/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "core/dtype.h"

namespace longspan {
namespace {

constexpr int32_t kGuardTokens = 2;    // rows before and behind the output
constexpr int32_t kGuardElements = 8;  // between the heads of an output row
constexpr std::byte kGuard{0xa5};
constexpr float kLseGuard = 12345.0f;

// About normal, the same for the same arguments on every machine.
float Noise(uint32_t kind, uint32_t sequence, int64_t position, int32_t head, int32_t d) {
  uint64_t x = kind * 0x9e3779b97f4a7c15ull + sequence * 0xc2b2ae3d27d4eb4full +
               static_cast<uint64_t>(position) * 0x165667b19e3779f9ull +
               static_cast<uint64_t>(head) * 0x27d4eb2f165667c5ull + static_cast<uint64_t>(d);
  double sum = 0.0;
  for (int i = 0; i < 3; ++i) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 29;
    sum += static_cast<double>(x >> 40) / (1 << 24) - 0.5;
  }
  return static_cast<float>(2.0 * sum);
}

void Put(std::vector<std::byte>& to, DType dtype, int64_t index, float x) {
  if (dtype == DType::kFloat32) {
    std::memcpy(to.data() + index * 4, &x, 4);
    return;
  }
  if (DTypeBytes(dtype) == 1) {
    to[index] = dtype == DType::kInt8 ? static_cast<std::byte>(FloatToInt8(x))
                                      : static_cast<std::byte>(FloatToFloat8E4M3(x));
    return;
  }
  const uint16_t bits = dtype == DType::kFloat16 ? FloatToFloat16(x) : FloatToBFloat16(x);
  std::memcpy(to.data() + index * 2, &bits, 2);
}

float Get(const std::vector<std::byte>& from, DType dtype, int64_t index) {
  if (dtype == DType::kFloat32) {
    float x;
    std::memcpy(&x, from.data() + index * 4, 4);
    return x;
  }
  uint16_t bits;
  std::memcpy(&bits, from.data() + index * 2, 2);
  return dtype == DType::kFloat16 ? Float16ToFloat(bits) : BFloat16ToFloat(bits);
}

}  // namespace

PagedAttention::PagedAttention(const AttentionCase& spec) {
  AttentionParams& p = params_;
  const int32_t num_seqs = static_cast<int32_t>(spec.q_lens.size());
  cu_seqlens_.push_back(0);
  for (const int32_t q_len : spec.q_lens) cu_seqlens_.push_back(cu_seqlens_.back() + q_len);
  seq_lens_ = spec.kv_lens;
  p.cu_seqlens_q = cu_seqlens_.data();
  p.seq_lens = seq_lens_.data();
  p.num_seqs = num_seqs;
  p.num_q_heads = spec.num_q_heads;
  p.num_kv_heads = spec.num_kv_heads;
  p.head_dim = spec.head_dim;
  p.block_size = spec.block_size;
  p.q_dtype = spec.q_dtype;
  p.kv_dtype = spec.kv_dtype;
  p.scale = spec.scale;
  p.softcap = spec.softcap;
  p.causal = spec.causal;
  p.window_left = spec.window_left;
  p.window_right = spec.window_right;
  for (int32_t head = 0; head < spec.num_q_heads; ++head) {
    sinks_.push_back(0.5f * static_cast<float>(head % 5) - 1.0f);
    slopes_.push_back(std::exp2(-1.0f - static_cast<float>(head % 8)));
  }
  if (spec.sinks) p.sinks = sinks_.data();
  if (spec.alibi) p.alibi_slopes = slopes_.data();
  FillQueries(spec);
  FillPool(spec);
  if (spec.tree != TreeMask::kNone) FillTree(spec);
}

// Odd multiples, different for keys and values, and for neighbours.
void PagedAttention::FillScales(int64_t block) {
  const KvScales& s = params_.scales;
  const int64_t of_block = s.k_block_stride == 0 ? 0 : block;
  for (int32_t head = 0; head < params_.num_kv_heads; ++head) {
    const int64_t k = 5 * of_block + (s.k_head_stride == 0 ? 0 : 3 * head);
    const int64_t v = 3 * of_block + (s.v_head_stride == 0 ? 0 : 5 * head);
    scale(false, block, head) = 0.0073f * static_cast<float>(1 + 2 * (k % 7));
    scale(true, block, head) = 0.0097f * static_cast<float>(3 + 2 * (v % 11));
  }
}

void PagedAttention::MakeScales(const AttentionCase& spec, int64_t num_blocks) {
  KvScales& s = params_.scales;
  if (DTypeBytes(spec.kv_dtype) != 1) return;
  if (spec.scaling != KvScaling::kTensor) {
    s.k_head_stride = 1;
    s.v_head_stride = 3;
  }
  if (spec.scaling == KvScaling::kBlockAndHead) {
    s.k_block_stride = spec.num_kv_heads + 2;
    s.v_block_stride = 3 * spec.num_kv_heads;
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  k_scales_.assign(num_blocks * s.k_block_stride + spec.num_kv_heads, nan);
  v_scales_.assign(num_blocks * s.v_block_stride + int64_t{3} * spec.num_kv_heads, nan);
  s.k = k_scales_.data();
  s.v = v_scales_.data();
}

// Words between those of the rows are never to be read: all their bits are set.
void PagedAttention::FillTree(const AttentionCase& spec) {
  constexpr int64_t kStride = 2;
  tree_mask_.assign(cu_seqlens_.back() * kStride + 1, ~uint64_t{0});
  std::mt19937_64 random(spec.block_order_seed + 17);
  for (int32_t seq = 0; seq < params_.num_seqs; ++seq) {
    for (int32_t i = 0; i < spec.q_lens[seq]; ++i) {
      uint64_t& word = tree_mask_[(cu_seqlens_[seq] + i) * kStride];
      if (spec.tree == TreeMask::kAny) {
        word = random() & random();
        continue;
      }
      const auto parent = static_cast<int64_t>(random() % (i + 1)) - 1;
      word = uint64_t{1} << i;
      if (parent >= 0) word |= tree_mask_[(cu_seqlens_[seq] + parent) * kStride];
    }
  }
  params_.tree_mask = tree_mask_.data();
  params_.tree_mask_stride = kStride;
}

void PagedAttention::FillQueries(const AttentionCase& spec) {
  AttentionParams& p = params_;
  const int64_t total_q = cu_seqlens_.back();
  const int64_t bytes = DTypeBytes(spec.q_dtype);
  p.q_head_stride = spec.head_dim;
  p.q_token_stride = int64_t{spec.num_q_heads} * spec.head_dim + 8;
  q_.assign((total_q * p.q_token_stride + 8) * bytes, std::byte{0xff});
  for (int32_t seq = 0; seq < p.num_seqs; ++seq) {
    const uint32_t content = spec.content.empty() ? seq : spec.content[seq];
    for (int32_t i = 0; i < spec.q_lens[seq]; ++i) {
      const int64_t position = int64_t{i} + spec.kv_lens[seq] - spec.q_lens[seq];
      for (int32_t head = 0; head < spec.num_q_heads; ++head) {
        for (int32_t d = 0; d < spec.head_dim; ++d) {
          const int64_t index =
              (cu_seqlens_[seq] + i) * p.q_token_stride + head * p.q_head_stride + d;
          Put(q_, spec.q_dtype, index,
              spec.magnitude * Noise(1, content, position + 1000, head, d));
        }
      }
    }
  }
  p.q = q_.data();
  p.o_head_stride = spec.head_dim + kGuardElements;
  p.o_token_stride = spec.num_q_heads * p.o_head_stride;
  o_.assign((total_q + 2 * kGuardTokens) * p.o_token_stride * bytes, kGuard);
  p.o = o_.data() + kGuardTokens * p.o_token_stride * bytes;
  lse_.assign((total_q + 2) * spec.num_q_heads, kLseGuard);
  p.lse = lse_.data() + spec.num_q_heads;
}

void PagedAttention::FillPool(const AttentionCase& spec) {
  AttentionParams& p = params_;
  int32_t num_blocks = spec.spare_blocks;
  int32_t widest = 0;
  for (const int32_t length : spec.kv_lens) {
    const int32_t blocks = (length + spec.block_size - 1) / spec.block_size;
    num_blocks += blocks;
    widest = std::max(widest, blocks);
  }
  if (spec.rows) num_blocks = spec.spare_blocks + p.num_seqs * widest;
  row_blocks_ = widest;
  const int64_t row = spec.head_dim;
  p.k_block_stride = p.v_block_stride = int64_t{spec.block_size} * spec.num_kv_heads * row;
  p.k_token_stride = p.v_token_stride = spec.heads_first ? row : spec.num_kv_heads * row;
  p.k_head_stride = p.v_head_stride = spec.heads_first ? spec.block_size * row : row;
  const int64_t bytes = DTypeBytes(spec.kv_dtype);
  k_.resize(num_blocks * p.k_block_stride * bytes);
  const float fill = spec.fill == KvFill::kZeros ? 0.0f
                     : spec.fill == KvFill::kNan ? std::numeric_limits<float>::quiet_NaN()
                                                 : std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < num_blocks * p.k_block_stride; ++i) Put(k_, spec.kv_dtype, i, fill);
  if (DTypeBytes(spec.kv_dtype) == 1 && spec.fill != KvFill::kZeros) {
    const bool first = spec.fill == KvFill::kNan;
    const uint8_t code =
        spec.kv_dtype == DType::kInt8 ? (first ? 0x80 : 0x7f) : (first ? 0x7f : 0xff);
    std::fill(k_.begin(), k_.end(), static_cast<std::byte>(code));
  }
  v_ = k_;
  MakeScales(spec, num_blocks);
  p.k = k_.data();
  p.v = v_.data();

  std::vector<int32_t> ids(num_blocks);
  std::iota(ids.begin(), ids.end(), 0);
  if (spec.block_order_seed != 0) {
    std::shuffle(ids.begin(), ids.end(), std::mt19937(spec.block_order_seed));
  }
  p.block_table_stride = widest + spec.extra_table_entries;
  table_.assign(std::max<int64_t>(1, p.num_seqs * p.block_table_stride),
                std::numeric_limits<int32_t>::max());
  p.block_table = table_.data();
  int32_t next = 0;
  for (int32_t seq = 0; seq < p.num_seqs; ++seq) {
    const uint32_t content = spec.content.empty() ? seq : spec.content[seq];
    for (int32_t position = 0; position < spec.kv_lens[seq]; ++position) {
      if (position % spec.block_size == 0) {
        const int32_t index = position / spec.block_size;
        const int32_t id = spec.rows ? seq * widest + index : ids[next++];
        block_table(seq)[index] = id;
        if (p.scales.k != nullptr) FillScales(id);
      }
      const int64_t block = block_table(seq)[position / spec.block_size];
      for (int32_t head = 0; head < spec.num_kv_heads; ++head) {
        const int64_t index = block * p.k_block_stride +
                              (position % spec.block_size) * p.k_token_stride +
                              head * p.k_head_stride;
        const float k_scale = p.scales.k == nullptr ? 1.0f : scale(false, block, head);
        const float v_scale = p.scales.v == nullptr ? 1.0f : scale(true, block, head);
        for (int32_t d = 0; d < spec.head_dim; ++d) {
          Put(k_, spec.kv_dtype, index + d, Noise(2, content, position, head, d) / k_scale);
          Put(v_, spec.kv_dtype, index + d, Noise(3, content, position, head, d) / v_scale);
        }
      }
    }
  }
}

void PagedAttention::SetKv(int seq, int64_t position, int32_t kv_head, bool values, float x) {
  const AttentionParams& p = params_;
  const int64_t index = block_table(seq)[position / p.block_size] * p.k_block_stride +
                        (position % p.block_size) * p.k_token_stride + kv_head * p.k_head_stride;
  for (int32_t d = 0; d < p.head_dim; ++d) Put(values ? v_ : k_, p.kv_dtype, index + d, x);
}

float PagedAttention::output(int64_t token, int32_t q_head, int32_t d) const {
  return Get(o_, params_.q_dtype,
             (token + kGuardTokens) * params_.o_token_stride + q_head * params_.o_head_stride + d);
}

bool PagedAttention::Run(ThreadPool& pool, const CpuAttentionOptions& options) {
  const int64_t total_q = cu_seqlens_.back();
  const int32_t longest =
      seq_lens_.empty() ? 0 : *std::max_element(seq_lens_.begin(), seq_lens_.end());
  const int64_t bytes = CpuAttentionWorkspaceBytes(params_, params_.num_seqs, total_q, longest,
                                                   pool.num_threads(), options);
  constexpr int64_t kSlack = 64;
  std::vector<std::byte> memory(bytes + 2 * kSlack, std::byte{0xff});
  std::byte* workspace = memory.data();
  while (reinterpret_cast<uintptr_t>(workspace) % 64 != 0) ++workspace;
  const std::byte last = workspace[bytes];
  const KernelStatus status =
      AttentionCpu(pool, params_, options, {workspace, static_cast<size_t>(bytes)});
  if (status != KernelStatus::kOk) {
    std::fprintf(stderr, "AttentionCpu: %s\n", std::string(KernelStatusText(status)).c_str());
    return false;
  }
  if (workspace[bytes] != last) {
    std::fprintf(stderr, "AttentionCpu wrote behind its workspace\n");
    return false;
  }
  return GuardsIntact();
}

bool PagedAttention::GuardsIntact() const {
  const AttentionParams& p = params_;
  const int64_t bytes = DTypeBytes(p.q_dtype);
  const int64_t total_q = cu_seqlens_.back();
  for (int64_t i = 0; i < static_cast<int64_t>(o_.size()); ++i) {
    const int64_t element = i / bytes;
    const int64_t token = element / p.o_token_stride - kGuardTokens;
    const int64_t in_head = element % p.o_head_stride;
    const bool owned = token >= 0 && token < total_q && in_head < p.head_dim;
    if (owned || o_[i] == kGuard) continue;
    std::fprintf(stderr, "guard word of o changed: token %lld, element %lld of its head\n",
                 static_cast<long long>(token), static_cast<long long>(in_head));
    return false;
  }
  for (int32_t head = 0; head < p.num_q_heads; ++head) {
    if (lse(-1, head) == kLseGuard && lse(total_q, head) == kLseGuard) continue;
    std::fprintf(stderr, "guard word of lse changed\n");
    return false;
  }
  return true;
}

void PagedAttention::ResetOutput() {
  std::fill(o_.begin(), o_.end(), kGuard);
  std::fill(lse_.begin(), lse_.end(), kLseGuard);
}

std::vector<std::byte> PagedAttention::RowBits(int seq, int32_t begin, int32_t end) const {
  const AttentionParams& p = params_;
  const int64_t bytes = DTypeBytes(p.q_dtype);
  std::vector<std::byte> bits;
  for (int64_t token = cu_seqlens_[seq] + begin; token < cu_seqlens_[seq] + end; ++token) {
    for (int32_t head = 0; head < p.num_q_heads; ++head) {
      const std::byte* o =
          o_.data() + ((token + kGuardTokens) * p.o_token_stride + head * p.o_head_stride) * bytes;
      bits.insert(bits.end(), o, o + p.head_dim * bytes);
    }
    const auto* row_lse =
        reinterpret_cast<const std::byte*>(lse_.data() + (token + 1) * p.num_q_heads);
    bits.insert(bits.end(), row_lse, row_lse + p.num_q_heads * sizeof(float));
  }
  return bits;
}

std::vector<std::byte> PagedAttention::AllBits() const {
  std::vector<std::byte> bits;
  for (int32_t seq = 0; seq < params_.num_seqs; ++seq) {
    const auto rows = RowBits(seq, 0, cu_seqlens_[seq + 1] - cu_seqlens_[seq]);
    bits.insert(bits.end(), rows.begin(), rows.end());
  }
  return bits;
}

std::vector<CpuAttentionIsa> SupportedAttentionIsas() {
  std::vector<CpuAttentionIsa> found;
  for (const auto isa :
       {CpuAttentionIsa::kGeneric, CpuAttentionIsa::kAvx2, CpuAttentionIsa::kAvx512}) {
    if (CpuAttentionIsaSupported(isa)) found.push_back(isa);
  }
  return found;
}

const char* AttentionIsaName(CpuAttentionIsa isa) {
  switch (isa) {
    case CpuAttentionIsa::kBest:
      return "best";
    case CpuAttentionIsa::kGeneric:
      return "generic";
    case CpuAttentionIsa::kAvx2:
      return "avx2";
    case CpuAttentionIsa::kAvx512:
      return "avx512";
  }
  return "?";
}

}  // namespace longspan
