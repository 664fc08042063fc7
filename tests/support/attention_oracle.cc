// The naive attention: three loops and a softmax.
#include "tests/support/attention_oracle.h"

#include <cmath>
#include <cstdio>
#include <limits>

#include "core/dtype.h"

namespace longspan {
namespace {

double ElementAt(const void* base, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kFloat32:
      return static_cast<const float*>(base)[index];
    case DType::kFloat16:
      return Float16ToFloat(static_cast<const uint16_t*>(base)[index]);
    case DType::kBFloat16:
      return BFloat16ToFloat(static_cast<const uint16_t*>(base)[index]);
    case DType::kFloat8E4M3:
      return Float8E4M3ToFloat(static_cast<const uint8_t*>(base)[index]);
    case DType::kInt8:
      return static_cast<const int8_t*>(base)[index];
    default:
      return std::numeric_limits<double>::quiet_NaN();
  }
}

// One query row of one head.
struct Row {
  int32_t seq;
  int64_t token;
  int64_t position;
  int32_t q_head;
};

bool Sees(const AttentionParams& p, const Row& row, int64_t key) {
  const int64_t position = row.position;
  if (p.tree_mask != nullptr) {
    const int64_t q_len = int64_t{p.cu_seqlens_q[row.seq + 1]} - p.cu_seqlens_q[row.seq];
    const int64_t own = key - (p.seq_lens[row.seq] - q_len);
    const uint64_t word = p.tree_mask[row.token * p.tree_mask_stride];
    if (own >= 0 && (word >> own) % 2 == 0) return false;
  } else if (p.causal && key > position) {
    return false;
  }
  if (p.window_left >= 0 && key < position - p.window_left) return false;
  if (p.window_right >= 0 && key > position + p.window_right) return false;
  return true;
}

int64_t KvIndex(const AttentionParams& p, const Row& row, int64_t key, bool values) {
  const int64_t block = p.block_table[row.seq * p.block_table_stride + key / p.block_size];
  const int64_t offset = key % p.block_size;
  const int64_t head = row.q_head / (p.num_q_heads / p.num_kv_heads);
  if (values) return block * p.v_block_stride + offset * p.v_token_stride + head * p.v_head_stride;
  return block * p.k_block_stride + offset * p.k_token_stride + head * p.k_head_stride;
}

// What a stored element of a key or value is multiplied by.
double KvScale(const AttentionParams& p, const Row& row, int64_t key, bool values) {
  if (DTypeBytes(p.kv_dtype) != 1) return 1.0;
  const int64_t block = p.block_table[row.seq * p.block_table_stride + key / p.block_size];
  const int64_t head = row.q_head / (p.num_q_heads / p.num_kv_heads);
  const KvScales& s = p.scales;
  if (values) return s.v[block * s.v_block_stride + head * s.v_head_stride];
  return s.k[block * s.k_block_stride + head * s.k_head_stride];
}

double Score(const AttentionParams& p, const Row& row, int64_t key) {
  const int64_t q = row.token * p.q_token_stride + int64_t{row.q_head} * p.q_head_stride;
  const int64_t k = KvIndex(p, row, key, false);
  double dot = 0.0;
  for (int64_t d = 0; d < p.head_dim; ++d) {
    dot += ElementAt(p.q, p.q_dtype, q + d) * ElementAt(p.k, p.kv_dtype, k + d);
  }
  double score = double{p.scale} * KvScale(p, row, key, false) * dot;
  if (p.softcap > 0.0f) score = p.softcap * std::tanh(score / p.softcap);
  if (p.alibi_slopes != nullptr) {
    score -=
        double{p.alibi_slopes[row.q_head]} * std::fabs(static_cast<double>(row.position - key));
  }
  return score;
}

void AttendRow(const AttentionParams& p, const Row& row, double* o, double* lse) {
  std::vector<int64_t> keys;
  std::vector<double> scores;
  double top = -std::numeric_limits<double>::infinity();
  for (int64_t key = 0; key < p.seq_lens[row.seq]; ++key) {
    if (!Sees(p, row, key)) continue;
    keys.push_back(key);
    scores.push_back(Score(p, row, key));
    top = std::fmax(top, scores.back());
  }
  for (int64_t d = 0; d < p.head_dim; ++d) o[d] = 0.0;
  *lse = -std::numeric_limits<double>::infinity();
  if (keys.empty()) return;
  double sum = 0.0;
  for (double& score : scores) sum += score = std::exp(score - top);
  *lse = top + std::log(sum);
  if (p.sinks != nullptr) sum += std::exp(double{p.sinks[row.q_head]} - top);
  for (size_t i = 0; i < keys.size(); ++i) {
    const int64_t v = KvIndex(p, row, keys[i], true);
    const double weight = scores[i] / sum * KvScale(p, row, keys[i], true);
    for (int64_t d = 0; d < p.head_dim; ++d) {
      o[d] += weight * ElementAt(p.v, p.kv_dtype, v + d);
    }
  }
}

struct Worst {
  double excess = 0.0;
  std::string text;
};

void CompareOne(const char* what, double actual, double expected, double tolerance, int64_t token,
                int64_t head, int64_t d, Worst& worst) {
  const bool same = std::isnan(expected)   ? std::isnan(actual)
                    : std::isinf(expected) ? actual == expected
                                           : std::isfinite(actual);
  double excess = same ? 0.0 : std::numeric_limits<double>::infinity();
  if (same && std::isfinite(expected)) {
    excess = std::fabs(actual - expected) / (tolerance * (1.0 + std::fabs(expected)));
  }
  if (excess <= 1.0 || excess <= worst.excess) return;
  worst.excess = excess;
  char line[200];
  std::snprintf(line, sizeof(line), "%s[token %lld, head %lld, d %lld] is %.9g, expected %.9g",
                what, static_cast<long long>(token), static_cast<long long>(head),
                static_cast<long long>(d), actual, expected);
  worst.text = line;
}

}  // namespace

OracleOutput AttentionOracle(const AttentionParams& params) {
  const int64_t total_q = params.num_seqs == 0 ? 0 : params.cu_seqlens_q[params.num_seqs];
  OracleOutput out;
  out.o.resize(total_q * params.num_q_heads * params.head_dim);
  out.lse.resize(total_q * params.num_q_heads);
  for (int32_t seq = 0; seq < params.num_seqs; ++seq) {
    const int64_t begin = params.cu_seqlens_q[seq];
    const int64_t end = params.cu_seqlens_q[seq + 1];
    for (int64_t token = begin; token < end; ++token) {
      for (int32_t head = 0; head < params.num_q_heads; ++head) {
        const int64_t index = token * params.num_q_heads + head;
        const Row row{seq, token, token - begin + params.seq_lens[seq] - (end - begin), head};
        AttendRow(params, row, &out.o[index * params.head_dim], &out.lse[index]);
      }
    }
  }
  return out;
}

std::string CompareWithOracle(const AttentionParams& params, const OracleOutput& expected,
                              double o_tolerance, double lse_tolerance) {
  Worst worst;
  const int64_t total_q = params.num_seqs == 0 ? 0 : params.cu_seqlens_q[params.num_seqs];
  for (int64_t token = 0; token < total_q; ++token) {
    for (int64_t head = 0; head < params.num_q_heads; ++head) {
      const int64_t index = token * params.num_q_heads + head;
      const int64_t o = token * params.o_token_stride + head * params.o_head_stride;
      for (int64_t d = 0; d < params.head_dim; ++d) {
        CompareOne("o", ElementAt(params.o, params.q_dtype, o + d),
                   expected.o[index * params.head_dim + d], o_tolerance, token, head, d, worst);
      }
      if (params.lse != nullptr) {
        CompareOne("lse", params.lse[index], expected.lse[index], lse_tolerance, token, head, -1,
                   worst);
      }
    }
  }
  return worst.text;
}

}  // namespace longspan
