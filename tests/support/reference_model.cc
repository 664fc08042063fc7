// The decoder once more, slowly and in double, without a cache and without the kernels: rows of
// vectors, one loop per formula. Shares no arithmetic with model/.
#include "tests/support/reference_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

#include "core/check.h"

namespace longspan::testing {
namespace {

using std::numbers::pi;

// Blend between a low and a high bound: 0 at or below low, 1 at or above high.
double Ramp(double x, double low, double high) {
  return std::clamp((x - low) / (high - low), 0.0, 1.0);
}

// Frequencies as transformers computes them for each kind of scaling.
std::vector<double> Frequencies(const RopeConfig& rope) {
  const int32_t pairs = rope.rotary_dim / 2;
  std::vector<double> out(static_cast<size_t>(pairs));
  const double original = rope.original_context_length;
  const auto dimension_of = [&](double turns) {  // yarn: the pair that turns so often
    return rope.rotary_dim * std::log(original / (turns * 2 * pi)) / (2 * std::log(rope.theta));
  };
  for (int32_t i = 0; i < pairs; ++i) {
    double f = std::pow(rope.theta, -2.0 * i / rope.rotary_dim);
    if (!rope.freq_factors.empty()) f /= rope.freq_factors[static_cast<size_t>(i)];
    switch (rope.scaling) {
      case RopeScaling::kNone:
        break;
      case RopeScaling::kLinear:
        f /= rope.factor;
        break;
      case RopeScaling::kLlama3: {
        const double turns = original * f / (2 * pi);
        const double keep = Ramp(turns, rope.low_freq_factor, rope.high_freq_factor);
        f = f * keep + f / rope.factor * (1 - keep);
        break;
      }
      case RopeScaling::kYarn: {
        const double low = std::max(std::floor(dimension_of(rope.beta_fast)), 0.0);
        double high = std::min(std::ceil(dimension_of(rope.beta_slow)), rope.rotary_dim - 1.0);
        if (high == low) high += 0.001;
        const double scaled = Ramp(i, low, high);
        f = f * (1 - scaled) + f / rope.factor * scaled;
        break;
      }
    }
    out[static_cast<size_t>(i)] = f;
  }
  return out;
}

}  // namespace

ReferenceModel::ReferenceModel(WeightSource& source)
    : config_(source.config()), frequencies_(Frequencies(config_.rope)) {
  if (config_.rope.scaling == RopeScaling::kYarn) {
    magnitude_ = config_.rope.attention_factor > 0 ? config_.rope.attention_factor
                                                   : 0.1 * std::log(config_.rope.factor) + 1;
  }
  for (int32_t layer = -1; layer < config_.num_layers; ++layer) {
    for (int role = 0; role <= static_cast<int>(WeightRole::kDown); ++role) {
      const WeightTensor* tensor = source.Find(static_cast<WeightRole>(role), layer);
      if (tensor == nullptr) continue;
      CHECK(tensor->format == WeightFormat::kF32, "{}", tensor->name);
      std::vector<float> values(static_cast<size_t>(tensor->size_bytes) / sizeof(float));
      CHECK(source.Read(*tensor, std::as_writable_bytes(std::span(values))).ok());
      weights_[{static_cast<WeightRole>(role), layer}] = Row(values.begin(), values.end());
    }
  }
}

const ReferenceModel::Row* ReferenceModel::Find(WeightRole role, int32_t layer) const {
  const auto found = weights_.find({role, layer});
  return found == weights_.end() ? nullptr : &found->second;
}

ReferenceModel::Rows ReferenceModel::Project(const Rows& x, WeightRole weight, WeightRole bias,
                                             int32_t layer) const {
  const Row& w = *Find(weight, layer);
  const Row* b = bias == weight ? nullptr : Find(bias, layer);
  const size_t cols = x[0].size(), rows = w.size() / cols;
  Rows y(x.size(), Row(rows, 0.0));
  for (size_t t = 0; t < x.size(); ++t) {
    for (size_t r = 0; r < rows; ++r) {
      double sum = b != nullptr ? (*b)[r] : 0.0;
      for (size_t c = 0; c < cols; ++c) sum += w[r * cols + c] * x[t][c];
      y[t][r] = sum;
    }
  }
  return y;
}

ReferenceModel::Rows ReferenceModel::Norm(const Rows& x, WeightRole weight, int32_t layer) const {
  const Row& w = *Find(weight, layer);
  Rows y = x;
  for (Row& row : y) {
    double squares = 0;
    for (const double value : row) squares += value * value;
    const double factor =
        1 / std::sqrt(squares / static_cast<double>(row.size()) + config_.rms_norm_eps);
    for (size_t i = 0; i < row.size(); ++i) row[i] *= factor * w[i];
  }
  return y;
}

void ReferenceModel::NormHeads(Rows& x, WeightRole weight, int32_t layer) const {
  const Row* w = Find(weight, layer);
  if (w == nullptr) return;
  for (Row& row : x) {
    for (size_t head = 0; head < row.size(); head += w->size()) {
      double squares = 0;
      for (size_t i = 0; i < w->size(); ++i) squares += row[head + i] * row[head + i];
      const double factor =
          1 / std::sqrt(squares / static_cast<double>(w->size()) + config_.rms_norm_eps);
      for (size_t i = 0; i < w->size(); ++i) row[head + i] *= factor * (*w)[i];
    }
  }
}

void ReferenceModel::Rotate(Rows& x) const {
  const size_t pairs = frequencies_.size();
  const size_t head_dim = static_cast<size_t>(config_.head_dim);
  for (size_t t = 0; t < x.size(); ++t) {
    for (size_t head = 0; head < x[t].size(); head += head_dim) {
      for (size_t i = 0; i < pairs; ++i) {
        const bool interleaved = config_.rope.style == RopeStyle::kInterleaved;
        double& a = x[t][head + (interleaved ? 2 * i : i)];
        double& b = x[t][head + (interleaved ? 2 * i + 1 : i + pairs)];
        const double angle = static_cast<double>(t) * frequencies_[i];
        const double c = std::cos(angle) * magnitude_, s = std::sin(angle) * magnitude_;
        const double first = a * c - b * s;
        b = a * s + b * c;
        a = first;
      }
    }
  }
}

ReferenceModel::Rows ReferenceModel::Attend(const Rows& q, const Rows& k, const Rows& v) const {
  const size_t head_dim = static_cast<size_t>(config_.head_dim);
  const size_t group = static_cast<size_t>(config_.num_q_heads / config_.num_kv_heads);
  Rows y(q.size(), Row(q[0].size(), 0.0));
  for (size_t t = 0; t < q.size(); ++t) {
    const size_t window = static_cast<size_t>(config_.sliding_window);
    const size_t first = window > 0 && t + 1 > window ? t + 1 - window : 0;
    for (size_t head = 0; head < q[0].size() / head_dim; ++head) {
      const size_t at = head * head_dim, kv = head / group * head_dim;
      Row score(t + 1 - first);
      for (size_t j = first; j <= t; ++j) {
        double dot = 0;
        for (size_t d = 0; d < head_dim; ++d) dot += q[t][at + d] * k[j][kv + d];
        score[j - first] = dot / std::sqrt(static_cast<double>(head_dim));
      }
      const double max = *std::max_element(score.begin(), score.end());
      double sum = 0;
      for (double& s : score) sum += s = std::exp(s - max);
      for (size_t j = first; j <= t; ++j) {
        for (size_t d = 0; d < head_dim; ++d) y[t][at + d] += score[j - first] / sum * v[j][kv + d];
      }
    }
  }
  return y;
}

void ReferenceModel::AddAttention(Rows& x, int32_t layer) const {
  const Rows h = Norm(x, WeightRole::kAttentionNorm, layer);
  Rows q = Project(h, WeightRole::kQuery, WeightRole::kQueryBias, layer);
  Rows k = Project(h, WeightRole::kKey, WeightRole::kKeyBias, layer);
  const Rows v = Project(h, WeightRole::kValue, WeightRole::kValueBias, layer);
  NormHeads(q, WeightRole::kQueryNorm, layer);
  NormHeads(k, WeightRole::kKeyNorm, layer);
  Rotate(q);
  Rotate(k);
  const Rows o = Project(Attend(q, k, v), WeightRole::kAttentionOutput,
                         WeightRole::kAttentionOutputBias, layer);
  for (size_t t = 0; t < x.size(); ++t) {
    for (size_t i = 0; i < x[t].size(); ++i) x[t][i] += o[t][i];
  }
}

void ReferenceModel::AddFeedForward(Rows& x, int32_t layer) const {
  const Rows h = Norm(x, WeightRole::kMlpNorm, layer);
  Rows gate = Project(h, WeightRole::kGate, WeightRole::kGate, layer);
  const Rows up = Project(h, WeightRole::kUp, WeightRole::kUp, layer);
  for (size_t t = 0; t < gate.size(); ++t) {
    for (size_t i = 0; i < gate[t].size(); ++i) {
      gate[t][i] *= up[t][i] / (1 + std::exp(-gate[t][i]));
    }
  }
  const Rows down = Project(gate, WeightRole::kDown, WeightRole::kDown, layer);
  for (size_t t = 0; t < x.size(); ++t) {
    for (size_t i = 0; i < x[t].size(); ++i) x[t][i] += down[t][i];
  }
}

std::vector<std::vector<double>> ReferenceModel::Logits(std::span<const TokenId> tokens) const {
  const Row& embedding = *Find(WeightRole::kTokenEmbedding, -1);
  const size_t hidden = static_cast<size_t>(config_.hidden_size);
  Rows x;
  for (const TokenId token : tokens) {
    const auto row =
        embedding.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(ToInt(token)) * hidden);
    x.emplace_back(row, row + static_cast<ptrdiff_t>(hidden));
  }
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    AddAttention(x, layer);
    AddFeedForward(x, layer);
  }
  const WeightRole output =
      config_.tied_embeddings ? WeightRole::kTokenEmbedding : WeightRole::kOutput;
  return Project(Norm(x, WeightRole::kOutputNorm, -1), output, output, -1);
}

}  // namespace longspan::testing
