// Sampling on a device against the CPU's sampler and against a double precision oracle that knows
// which tokens a random number may give when it falls beside the border of two.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

#include "kernels/cpu/thread_pool.h"
#include "kernels/random_stream.h"
#include "kernels/sampling.h"
#include "model/sampler.h"
#include "tests/kernels/device_array.h"

namespace longspan {
namespace {

class SamplingOnGpu : public GpuKernel {};

constexpr float kInf = std::numeric_limits<float>::infinity();

// One row and what is wanted of it.
struct Request {
  std::vector<float> logits = {};
  SamplingParams params = {};
  int32_t position = 0;
  std::vector<TokenId> history = {};
  int32_t num_prompt_tokens = 0;
  TokenId given = kInvalidToken;
};

struct Outcome {
  int32_t token = -2;
  float logprob = 0.0f;
  std::vector<int32_t> top_tokens = {};
  std::vector<float> top_logprobs = {};
};

bool EndsWith(const std::vector<TokenId>& history, std::span<const TokenId> tail) {
  return history.size() >= tail.size() &&
         std::equal(tail.begin(), tail.end(), history.end() - static_cast<ptrdiff_t>(tail.size()));
}

// The edits that the transforms of a request come to, one per token.
std::vector<LogitEdit> EditsOf(const Request& r) {
  std::map<int32_t, LogitEdit> edits;
  const auto edit = [&](TokenId token) -> LogitEdit& {
    LogitEdit& e = edits[ToInt(token)];
    e.token = ToInt(token);
    return e;
  };
  for (const auto& [token, bias] : r.params.logit_bias) edit(token).bias = bias;
  for (size_t i = 0; i < r.history.size(); ++i) {
    LogitEdit& e = edit(r.history[i]);
    e.num_generated = std::max(e.num_generated, 0);
    if (static_cast<int32_t>(i) >= r.num_prompt_tokens) ++e.num_generated;
  }
  for (const auto& word : r.params.bad_words) {
    if (EndsWith(r.history, {word.data(), word.size() - 1})) edit(word.back()).masked = 1;
  }
  if (r.position < r.params.min_tokens) {
    for (const TokenId token : r.params.stop_token_ids) edit(token).masked = 1;
  }
  std::vector<LogitEdit> list;
  for (const auto& entry : edits) list.push_back(entry.second);
  return list;
}

// The requests' rows on a device. padding: elements between rows; the rows' first element misses
// 16-byte alignment by shift bytes.
class DeviceBatch {
 public:
  DeviceBatch(const std::vector<Request>& requests, int32_t max_top, int64_t padding = 0,
              int64_t shift = 0)
      : vocab_(static_cast<int64_t>(requests[0].logits.size())),
        stride_(vocab_ + padding),
        max_top_(max_top),
        logits_(Logits(requests, stride_), shift),
        rows_(Rows(requests)),
        edits_(Edits(requests)),
        saved_(std::vector<float>(Edits(requests).size())),
        tokens_(std::vector<int32_t>(requests.size(), -2)),
        logprobs_(std::vector<float>(requests.size(), 7.0f)),
        top_tokens_(std::vector<int32_t>(requests.size() * static_cast<size_t>(max_top), -2)),
        top_logprobs_(std::vector<float>(requests.size() * static_cast<size_t>(max_top), 7.0f)),
        before_(Logits(requests, stride_)) {
    params_.logits = logits_.data();
    params_.logits_stride = stride_;
    params_.num_rows = static_cast<int32_t>(requests.size());
    params_.vocab_size = static_cast<int32_t>(vocab_);
    params_.rows = rows_.data();
    params_.edits = edits_.data();
    params_.saved_logits = saved_.data();
    params_.tokens = tokens_.data();
    params_.logprobs = logprobs_.data();
    params_.top_tokens = top_tokens_.data();
    params_.top_logprobs = top_logprobs_.data();
    params_.max_top = max_top;
  }

  SampleRowsParams& params() { return params_; }
  DeviceArray<SampleRow>& rows() { return rows_; }

  // Results, once it has been seen that the logits have the bits they had.
  std::vector<Outcome> Outcomes() {
    const std::vector<int32_t> tokens = tokens_.Host("tokens");
    const std::vector<float> logprobs = logprobs_.Host("logprobs");
    const std::vector<int32_t> top_tokens = top_tokens_.Host("top tokens");
    const std::vector<float> top_logprobs = top_logprobs_.Host("top logprobs");
    saved_.Host("saved logits");
    const std::vector<float> after = logits_.Host("logits");
    EXPECT_EQ(std::memcmp(after.data(), before_.data(), after.size() * sizeof(float)), 0)
        << "logits were not restored";
    std::vector<Outcome> outcomes;
    for (size_t i = 0; i < tokens.size(); ++i) {
      Outcome outcome{.token = tokens[i], .logprob = logprobs[i]};
      for (int32_t k = 0; k < max_top_; ++k) {
        const size_t at = i * static_cast<size_t>(max_top_) + static_cast<size_t>(k);
        outcome.top_tokens.push_back(top_tokens[at]);
        outcome.top_logprobs.push_back(top_logprobs[at]);
      }
      outcomes.push_back(std::move(outcome));
    }
    return outcomes;
  }
  std::vector<Outcome> Run() {
    EXPECT_EQ(SampleRowsGpu(params_, nullptr), KernelStatus::kOk);
    return Outcomes();
  }

 private:
  static std::vector<float> Logits(const std::vector<Request>& requests, int64_t stride) {
    std::vector<float> all(requests.size() * static_cast<size_t>(stride), 1e30f);
    for (size_t i = 0; i < requests.size(); ++i) {
      std::copy(requests[i].logits.begin(), requests[i].logits.end(),
                all.begin() + static_cast<ptrdiff_t>(i) * stride);
    }
    return all;
  }
  static std::vector<SampleRow> Rows(const std::vector<Request>& requests) {
    std::vector<SampleRow> rows;
    int32_t next = 0;
    for (const Request& r : requests) {
      const auto count = static_cast<int32_t>(EditsOf(r).size());
      rows.push_back({.seed = r.params.seed,
                      .sequence_index = r.params.sequence_index,
                      .position = r.position,
                      .temperature = r.params.temperature,
                      .top_p = r.params.top_p,
                      .min_p = r.params.min_p,
                      .top_k = r.params.top_k,
                      .repetition_penalty = r.params.repetition_penalty,
                      .presence_penalty = r.params.presence_penalty,
                      .frequency_penalty = r.params.frequency_penalty,
                      .num_logprobs = r.given == kInvalidToken ? r.params.num_logprobs
                                                               : r.params.num_prompt_logprobs,
                      .given = r.given == kInvalidToken ? -1 : ToInt(r.given),
                      .edits_begin = next,
                      .edits_end = next + count});
      next += count;
    }
    return rows;
  }
  static std::vector<LogitEdit> Edits(const std::vector<Request>& requests) {
    std::vector<LogitEdit> all;
    for (const Request& r : requests) {
      const std::vector<LogitEdit> edits = EditsOf(r);
      all.insert(all.end(), edits.begin(), edits.end());
    }
    return all;
  }

  int64_t vocab_, stride_;
  int32_t max_top_;
  DeviceArray<float> logits_;
  DeviceArray<SampleRow> rows_;
  DeviceArray<LogitEdit> edits_;
  DeviceArray<float> saved_;
  DeviceArray<int32_t> tokens_;
  DeviceArray<float> logprobs_;
  DeviceArray<int32_t> top_tokens_;
  DeviceArray<float> top_logprobs_;
  std::vector<float> before_;
  SampleRowsParams params_;
};

std::vector<RowOutcome> OnCpu(const std::vector<Request>& requests) {
  ThreadPool pool(1);
  Sampler sampler(static_cast<int32_t>(requests[0].logits.size()),
                  static_cast<int32_t>(requests.size()), 1);
  std::vector<LogitsRow> rows;
  for (size_t i = 0; i < requests.size(); ++i) {
    AdmittedSequence sequence;
    sequence.slot = static_cast<int32_t>(i);
    sequence.sampling = requests[i].params;
    sequence.num_prompt_tokens = requests[i].num_prompt_tokens;
    sampler.Admit(sequence, requests[i].history);
    rows.push_back({requests[i].logits, sequence.slot, requests[i].position, requests[i].given});
  }
  std::vector<RowOutcome> outcomes(rows.size());
  sampler.Run(pool, rows, outcomes);
  return outcomes;
}

// What the random number of a row may choose, when every sum may be off by `slack` of the total.
class Oracle {
 public:
  explicit Oracle(const std::vector<float>& logits) : logits_(logits), order_(logits.size()) {
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
  }

  bool Accepts(const SamplingParams& params, double uniform, int32_t token) const {
    if (token < 0 || token >= static_cast<int32_t>(logits_.size())) return false;
    if (params.temperature <= 0.0f) return token == order_[0];
    const double max = logits_[static_cast<size_t>(order_[0])];
    std::vector<double> weight(logits_.size());
    for (size_t i = 0; i < weight.size(); ++i) {
      weight[i] = std::exp((logits_[i] - max) / params.temperature);
    }
    size_t kept = weight.size();
    if (params.top_k > 0) kept = std::min(kept, static_cast<size_t>(params.top_k));
    while (kept > 1 && weight[static_cast<size_t>(order_[kept - 1])] < params.min_p) --kept;
    double total = 0;
    for (size_t i = 0; i < kept; ++i) total += weight[static_cast<size_t>(order_[i])];
    for (const double change : {-kSlack, 0.0, kSlack}) {
      size_t inside = kept;
      if (params.top_p < 1.0f) {
        double mass = 0;
        inside = 0;
        while (inside < kept && (inside == 0 || mass < (params.top_p + change) * total)) {
          mass += weight[static_cast<size_t>(order_[inside++])];
        }
      }
      if (AcceptsAmong(inside, weight, uniform, token)) return true;
    }
    return false;
  }

 private:
  static constexpr double kSlack = 1e-6;

  bool AcceptsAmong(size_t inside, const std::vector<double>& weight, double uniform,
                    int32_t token) const {
    double total = 0, before = 0;
    bool is_inside = false;
    for (size_t i = 0; i < inside; ++i) {
      const int32_t id = order_[i];
      total += weight[static_cast<size_t>(id)];
      if (id < token) before += weight[static_cast<size_t>(id)];
      is_inside = is_inside || id == token;
    }
    const double wanted = uniform * total;
    return is_inside && wanted >= before - kSlack * total &&
           wanted < before + weight[static_cast<size_t>(token)] + kSlack * total;
  }

  const std::vector<float>& logits_;
  std::vector<int32_t> order_;
};

std::vector<float> RandomLogits(int64_t vocab_size, uint32_t seed, float spread) {
  std::vector<float> logits = NormalFloats(static_cast<size_t>(vocab_size), seed);
  for (float& logit : logits) logit *= spread;
  return logits;
}

std::vector<SamplingParams> AllFilters() {
  struct Filters {
    float temperature;
    int32_t top_k;
    float top_p, min_p;
  };
  std::vector<SamplingParams> all;
  for (const Filters& f : {Filters{1.0f, 0, 1.0f, 0.0f},
                           {0.7f, -1, 1.0f, 0.0f},
                           {2.5f, 0, 1.0f, 0.0f},
                           {1e-9f, 0, 1.0f, 0.0f},
                           {0.0f, 5, 0.5f, 0.1f},
                           {1.0f, 1, 1.0f, 0.0f},
                           {1.0f, 7, 1.0f, 0.0f},
                           {1.0f, 1000, 0.95f, 0.0f},
                           {1.0f, 5000, 1.0f, 0.0f},
                           {1.5f, 1 << 30, 0.9f, 0.0f},
                           {1.0f, 0, 0.9f, 0.0f},
                           {0.6f, 0, 0.95f, 0.0f},
                           {1.0f, 0, 0.0f, 0.0f},
                           {1.0f, 0, 0.999999f, 0.0f},
                           {1.0f, 0, 1.0f, 0.05f},
                           {1.0f, 0, 1.0f, 1.0f},
                           {1.0f, 0, 0.7f, 1e-6f},
                           {1.3f, 40, 0.8f, 0.01f},
                           {100.0f, 0, 0.99f, 0.0f}}) {
    SamplingParams params;
    params.temperature = f.temperature;
    params.top_k = f.top_k;
    params.top_p = f.top_p;
    params.min_p = f.min_p;
    all.push_back(params);
  }
  return all;
}

std::ostream& operator<<(std::ostream& out, const Request& r) {
  return out << "vocab " << r.logits.size() << " temperature " << r.params.temperature << " top_k "
             << r.params.top_k << " top_p " << r.params.top_p << " min_p " << r.params.min_p
             << " seed " << r.params.seed << " position " << r.position;
}

// Every token is one the oracle accepts, and all but few are the CPU's.
void ExpectDraws(const std::vector<float>& logits, int draws, double max_different, int64_t padding,
                 int64_t shift) {
  std::vector<Request> requests;
  for (const SamplingParams& filters : AllFilters()) {
    for (int i = 0; i < draws; ++i) {
      Request r{.logits = logits, .params = filters, .position = i};
      r.params.seed = static_cast<uint64_t>(requests.size()) * 0x9e3779b97f4a7c15u;
      r.params.sequence_index = i % 3;
      requests.push_back(std::move(r));
    }
  }
  DeviceBatch batch(requests, 0, padding, shift);
  const std::vector<Outcome> got = batch.Run();
  const std::vector<RowOutcome> expected = OnCpu(requests);
  const Oracle oracle(logits);
  int different = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (got[i].token == ToInt(expected[i].token)) continue;
    ++different;
    const Request& r = requests[i];
    const double uniform = UniformAt(r.params.seed, r.params.sequence_index, r.position);
    EXPECT_TRUE(oracle.Accepts(r.params, uniform, got[i].token))
        << r << ": token " << got[i].token << ", the CPU's is " << ToInt(expected[i].token);
  }
  EXPECT_LE(different, max_different * static_cast<double>(requests.size()))
      << "vocab " << logits.size() << ": too many tokens differ from the CPU's";
}

TEST_F(SamplingOnGpu, DrawsAreTheCpusForSmallVocabularies) {
  for (const int64_t vocab : {1, 2, 5, 63, 64, 65, 127, 1000, 4099}) {
    ExpectDraws(RandomLogits(vocab, static_cast<uint32_t>(vocab), 2.0f), 20, 0.005, 0, 0);
  }
}

TEST_F(SamplingOnGpu, DrawsAreTheCpusForLargeVocabularies) {
  // Peaked, as models are, and flat, where no filter leaves few candidates.
  ExpectDraws(RandomLogits(32003, 1, 3.0f), 4, 0.05, 0, 0);
  ExpectDraws(RandomLogits(151936, 2, 2.5f), 2, 0.10, 0, 0);
  ExpectDraws(RandomLogits(128256, 3, 0.1f), 2, 0.10, 0, 0);
}

TEST_F(SamplingOnGpu, UnalignedRowsGiveTheSameDraws) {
  ExpectDraws(RandomLogits(5003, 4, 2.0f), 4, 0.01, 1, 0);
  ExpectDraws(RandomLogits(5003, 4, 2.0f), 4, 0.01, 0, 4);
  ExpectDraws(RandomLogits(262144, 5, 3.0f), 1, 0.20, 4, 8);
}

TEST_F(SamplingOnGpu, TiesAtEveryBorderGoToTheLowestIds) {
  for (const int64_t vocab : {70, 3000, 40000}) {
    for (const float grain : {1.0f, 4.0f}) {
      std::vector<float> logits = RandomLogits(vocab, 6, 1.5f);
      for (float& logit : logits) logit = std::round(logit * grain) / grain;
      ExpectDraws(logits, 5, 0.02, 0, 0);
    }
  }
}

TEST_F(SamplingOnGpu, ArgMaxTakesTheLowestIdOfTiesAnywhere) {
  for (const int32_t vocab : {1, 2, 64, 129, 4097, 151936}) {
    std::vector<Request> requests;
    std::vector<int32_t> expected;
    for (const int32_t at : {0, vocab / 3, vocab / 2, vocab - 1}) {
      Request r;
      r.params.temperature = 0.0f;
      r.logits.assign(static_cast<size_t>(vocab), -5.0f);
      for (const int32_t tie : {at, vocab - 1}) r.logits[static_cast<size_t>(tie)] = -1.0f;
      requests.push_back(r);
      expected.push_back(at);
      for (float& x : r.logits) x = 0.0f;  // 0 and -0 are one value
      if (at > 0) r.logits[0] = -0.0f;
      requests.push_back(r);
      expected.push_back(0);
    }
    DeviceBatch batch(requests, 0);
    const std::vector<Outcome> got = batch.Run();
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_EQ(got[i].token, expected[i]) << vocab << " " << i;
  }
}

TEST_F(SamplingOnGpu, NonFiniteLogitsEndTheirRowAlone) {
  for (const int32_t vocab : {1, 65, 5000}) {
    std::vector<Request> requests;
    for (const float bad : {kInf, -kInf, std::nanf("")}) {
      for (const int32_t at : {0, vocab / 2, vocab - 1}) {
        Request r{.logits = RandomLogits(vocab, 7, 1.0f)};
        r.params.num_logprobs = 1;
        r.params.temperature = 0.0f;
        requests.push_back(r);
        r.logits[static_cast<size_t>(at)] = bad;
        requests.push_back(r);
      }
    }
    DeviceBatch batch(requests, 2);
    const std::vector<Outcome> got = batch.Run();
    const std::vector<RowOutcome> expected = OnCpu(requests);
    for (size_t i = 0; i < got.size(); ++i) {
      if (i % 2 == 1) {
        EXPECT_EQ(got[i].token, -1) << vocab << " " << i;
        EXPECT_EQ(got[i].logprob, 7.0f) << "set beside a logit that is not finite";
      } else {
        EXPECT_EQ(got[i].token, ToInt(expected[i].token)) << vocab << " " << i;
      }
    }
  }
}

std::vector<TokenId> Tokens(std::initializer_list<int32_t> ids) {
  std::vector<TokenId> tokens;
  for (const int32_t id : ids) tokens.push_back(TokenId{id});
  return tokens;
}

TEST_F(SamplingOnGpu, BiasPenaltiesAndMasksAreTheCpus) {
  constexpr int32_t kVocab = 517;
  std::vector<Request> requests;
  for (int i = 0; i < 60; ++i) {
    Request r{.logits = RandomLogits(kVocab, static_cast<uint32_t>(i), 2.0f), .position = i % 4};
    SamplingParams& p = r.params;
    p.seed = static_cast<uint64_t>(i);
    p.temperature = i % 5 == 0 ? 0.0f : 0.9f;
    p.top_k = i % 3 == 0 ? 20 : 0;
    p.top_p = i % 4 == 1 ? 0.8f : 1.0f;
    const auto best =
        static_cast<int32_t>(std::max_element(r.logits.begin(), r.logits.end()) - r.logits.begin());
    r.history = Tokens({3, 17, 3, best, 500, best, 9, 17, 3});
    r.num_prompt_tokens = 4;
    if (i % 2 == 0) p.repetition_penalty = i % 4 == 0 ? 1.7f : 0.6f;
    if (i % 3 == 1) p.presence_penalty = 1.1f;
    if (i % 3 == 2) p.frequency_penalty = 0.37f;
    if (i % 4 == 3)
      p.logit_bias = {{TokenId{8}, 5.5f}, {TokenId{17}, -2.25f}, {TokenId{516}, 4.0f}};
    if (i % 7 == 0) p.logit_bias.push_back({TokenId{11}, 3e38f});
    if (i % 6 == 5) p.bad_words = {Tokens({17, 3, 12}), Tokens({best}), Tokens({4, 5})};
    if (i % 5 == 2) {
      p.min_tokens = 2;
      p.stop_token_ids = Tokens({best, 0});
    }
    // The CPU keeps a history only where parameters need one.
    if (!p.NeedsHistory()) r.history.clear();
    requests.push_back(r);
  }
  DeviceBatch batch(requests, 0);
  const std::vector<Outcome> got = batch.Run();
  const std::vector<RowOutcome> expected = OnCpu(requests);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].token, ToInt(expected[i].token)) << "request " << i;
  }
}

TEST_F(SamplingOnGpu, WhenEverythingIsMaskedTheBestOfItIsTaken) {
  Request r{.logits = {0.5f, 2.0f, -1.0f, 1.9f}};
  r.params.min_tokens = 3;
  r.params.stop_token_ids = Tokens({0, 1, 2, 3});
  r.params.logit_bias = {{TokenId{1}, -0.5f}};
  DeviceBatch batch({r}, 0);
  EXPECT_EQ(batch.Run()[0].token, 3);
  EXPECT_EQ(ToInt(OnCpu({r})[0].token), 3);
}

TEST_F(SamplingOnGpu, LogProbabilitiesAreThoseOfTheUntouchedDistribution) {
  for (const int64_t vocab : {3, 64, 1000, 151936}) {
    std::vector<Request> requests;
    for (const int32_t num_logprobs : {-1, 0, 1, 5, 20}) {
      for (const float grain : {0.0f, 2.0f}) {  // ties
        Request r{.logits = RandomLogits(vocab, 8, 3.0f)};
        if (grain > 0) {
          for (float& x : r.logits) x = std::round(x * grain) / grain;
        }
        r.params.temperature = 0.0f;
        r.params.logit_bias = {{TokenId{1}, 100.0f}};  // token 1 is chosen
        r.params.num_logprobs = num_logprobs;
        requests.push_back(r);
        r.given = TokenId{2};
        r.params.num_prompt_logprobs = num_logprobs;
        requests.push_back(r);
      }
    }
    DeviceBatch batch(requests, 20);
    const std::vector<Outcome> got = batch.Run();
    const std::vector<RowOutcome> expected = OnCpu(requests);
    for (size_t i = 0; i < got.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "vocab " << vocab << " request " << i);
      const int32_t wanted = requests[i].params.num_logprobs;
      EXPECT_EQ(got[i].token, requests[i].given == kInvalidToken ? 1 : 2);
      if (wanted < 0) {
        EXPECT_EQ(got[i].logprob, 7.0f) << "not asked for";
        EXPECT_EQ(got[i].top_tokens[0], -2) << "not asked for";
        continue;
      }
      // Sums of float exponentials: 2e-6 each, as the CPU's own test allows.
      EXPECT_NEAR(got[i].logprob, expected[i].logprobs.logprob, 4e-6);
      if (wanted == 0) continue;
      const size_t count = expected[i].logprobs.top_ids.size();
      ASSERT_EQ(count, static_cast<size_t>(std::min<int64_t>(wanted, vocab)));
      for (size_t k = 0; k < 20; ++k) {
        if (k < count) {
          EXPECT_EQ(got[i].top_tokens[k], ToInt(expected[i].logprobs.top_ids[k])) << k;
          EXPECT_NEAR(got[i].top_logprobs[k], expected[i].logprobs.top_logprobs[k], 4e-6) << k;
        } else {
          EXPECT_EQ(got[i].top_tokens[k], -1) << k;
          EXPECT_EQ(got[i].top_logprobs[k], -kInf) << k;
        }
      }
    }
  }
}

TEST_F(SamplingOnGpu, TopLogProbabilitiesAmongMoreTiesThanCandidatesFit) {
  Request r;
  r.logits.assign(20000, 1.0f);
  r.logits[13000] = 2.0f;
  r.params.num_logprobs = 5;
  r.params.temperature = 0.0f;
  DeviceBatch batch({r}, 5);
  EXPECT_EQ(batch.Run()[0].top_tokens, (std::vector<int32_t>{13000, 0, 1, 2, 3}));
}

TEST_F(SamplingOnGpu, Trap_13_ARowsTokenDoesNotDependOnItsBatch) {
  std::vector<Request> requests;
  for (int i = 0; i < 150; ++i) {  // more rows than the card has SMs
    Request r{.logits = RandomLogits(2000, static_cast<uint32_t>(i), 2.0f), .position = i};
    r.params.top_p = i % 2 == 0 ? 0.9f : 1.0f;
    r.params.seed = 5;
    r.params.num_logprobs = 1;
    requests.push_back(r);
  }
  DeviceBatch batch(requests, 1);
  const std::vector<Outcome> first = batch.Run();
  for (int run = 0; run < 20; ++run) {
    const std::vector<Outcome> again = batch.Run();
    for (size_t i = 0; i < first.size(); ++i) {
      ASSERT_EQ(again[i].token, first[i].token) << "run " << run << " row " << i;
      ASSERT_EQ(again[i].logprob, first[i].logprob) << "run " << run << " row " << i;
    }
  }
  for (const size_t i : {size_t{0}, size_t{77}, size_t{149}}) {
    DeviceBatch alone({requests[i]}, 1);
    EXPECT_EQ(alone.Run()[0].token, first[i].token) << "row " << i;
  }
}

TEST_F(SamplingOnGpu, NoRowsAndAReplayedGraph) {
  Request r{.logits = RandomLogits(1000, 9, 2.0f)};
  DeviceBatch batch({r}, 0);
  batch.params().num_rows = 0;
  EXPECT_EQ(batch.Run()[0].token, -2);
  batch.params().num_rows = 1;
  batch.Run();
  auto stream = GpuStream::Create();
  ASSERT_TRUE(stream.has_value());
  auto graph = GpuGraph::Capture(*stream, [&] {
    EXPECT_EQ(SampleRowsGpu(batch.params(), stream->handle()), KernelStatus::kOk);
  });
  ASSERT_TRUE(graph.has_value());
  for (const int32_t position : {3, 4, 5, 6}) {
    r.position = position;
    batch.rows().Set({SampleRow{.position = position}});
    batch.rows().Host("rows");
    ASSERT_TRUE(graph->Launch(*stream).ok());
    ASSERT_TRUE(stream->Synchronize().ok());
    EXPECT_EQ(batch.Outcomes()[0].token, ToInt(OnCpu({r})[0].token)) << position;
  }
}

// No device is needed: the answer comes before anything is asked of one.
TEST(SamplingRefusals, NameTheReason) {
  alignas(16) float logits[32] = {};
  SampleRow row;
  int32_t token = 0;
  const SampleRowsParams good{.logits = logits,
                              .logits_stride = 8,
                              .num_rows = 2,
                              .vocab_size = 8,
                              .rows = &row,
                              .tokens = &token};
  const auto sample = [&](auto change) {
    SampleRowsParams params = good;
    change(params);
    return SampleRowsGpu(params, nullptr);
  };
  using P = SampleRowsParams&;
  const LogitEdit edit;
  EXPECT_EQ(sample([](P p) { p.num_rows = 0; }), KernelStatus::kOk);
  EXPECT_EQ(sample([](P p) { p.num_rows = -1; }), KernelStatus::kBadShape);
  EXPECT_EQ(sample([](P p) { p.vocab_size = 0; }), KernelStatus::kBadShape);
  EXPECT_EQ(sample([](P p) { p.vocab_size = (1 << 18) + 1; }), KernelStatus::kBadShape);
  EXPECT_EQ(sample([](P p) { p.logits = nullptr; }), KernelStatus::kBadShape);
  EXPECT_EQ(sample([](P p) { p.rows = nullptr; }), KernelStatus::kBadShape);
  EXPECT_EQ(sample([](P p) { p.tokens = nullptr; }), KernelStatus::kBadShape);
  EXPECT_EQ(sample([&](P p) { p.edits = &edit; }), KernelStatus::kBadShape);
  EXPECT_EQ(sample([](P p) { p.max_top = 1; }), KernelStatus::kBadShape);
  EXPECT_EQ(sample([](P p) { p.max_top = kMaxTopLogprobs + 1; }), KernelStatus::kBadShape);
  EXPECT_EQ(sample([](P p) { p.logits_stride = 7; }), KernelStatus::kBadStride);
  EXPECT_EQ(sample([](P p) { p.logits_stride = -8; }), KernelStatus::kBadStride);
  EXPECT_EQ(sample([](P p) {
              p.logits = reinterpret_cast<float*>(reinterpret_cast<char*>(p.logits) + 2);
            }),
            KernelStatus::kMisaligned);
}

}  // namespace
}  // namespace longspan
