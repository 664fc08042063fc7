// Every field of a request at its borders, and the rules between fields: faults R1-R6 and U1, cases
// 25, 27 and 28.
#include "server/request_validator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "scheduler/scheduler.h"
#include "tests/server/served_fake.h"

namespace longspan {
namespace {

using testing::FakeModel;
using testing::FakeModelOptions;
using v1::GenerateRequest;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int32_t kMin32 = std::numeric_limits<int32_t>::min();
constexpr int32_t kMax32 = std::numeric_limits<int32_t>::max();

GenerateRequest WithPrompt(int32_t num_tokens) {
  GenerateRequest request;
  request.mutable_token_ids();
  for (int32_t i = 0; i < num_tokens; ++i) request.mutable_token_ids()->add_ids(i % 500 + 1);
  return request;
}

// The field of the first violation; "" when the request is accepted.
std::string ViolatedField(const grpc::Status& status) {
  if (status.ok()) return "";
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  EXPECT_LT(status.error_message().size() + status.error_details().size() * 4 / 3, 8 * 1024);
  EXPECT_NE(status.error_message().find("(limit"), std::string::npos) << status.error_message();
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  google::rpc::BadRequest bad_request;
  EXPECT_TRUE(details.details(0).UnpackTo(&bad_request));
  return bad_request.field_violations(0).field();
}

class RequestValidatorTest : public ::testing::Test {
 protected:
  grpc::Status Build(const GenerateRequest& request, const FakeModelOptions& options = {}) {
    const FakeModel fake(options);
    out_ = ValidatedRequest();
    return RequestValidator(fake.model).Build(request, 77, nullptr, out_);
  }
  std::string Field(const GenerateRequest& request, const FakeModelOptions& options = {}) {
    return ViolatedField(Build(request, options));
  }
  // Sets one field of an otherwise good request.
  std::string FieldAfter(const std::function<void(GenerateRequest&)>& change) {
    GenerateRequest request = WithPrompt(10);
    change(request);
    return Field(request);
  }

  ValidatedRequest out_;
};

// ---- Numbers at their borders -----------------------------------------------------------------

struct FloatBorders {
  const char* path;
  void (*set)(GenerateRequest&, float);
  std::vector<float> good;
  std::vector<float> bad;
};

TEST_F(RequestValidatorTest, Fault_U1_EveryFloatAtItsBorders) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const float above1 = std::nextafter(1.0f, 2.0f);
  const std::vector<FloatBorders> table = {
      {"sampling.temperature",
       [](GenerateRequest& r, float v) { r.mutable_sampling()->set_temperature(v); },
       {0.0f, -0.0f, tiny, 1e-9f, 1.0f, 100.0f},
       {-1.0f, -tiny, 100.01f, 1e9f}},
      {"sampling.top_p",
       [](GenerateRequest& r, float v) { r.mutable_sampling()->set_top_p(v); },
       {tiny, 1e-7f, 0.5f, 1.0f},
       {-0.1f, 0.0f, above1, 1.1f}},
      {"sampling.min_p",
       [](GenerateRequest& r, float v) { r.mutable_sampling()->set_min_p(v); },
       {0.0f, tiny, 1.0f},
       {-tiny, above1, 1.1f}},
      {"sampling.repetition_penalty",
       [](GenerateRequest& r, float v) { r.mutable_sampling()->set_repetition_penalty(v); },
       {tiny, 1.0f, 10.0f},
       {0.0f, -1.0f, 10.01f}},
      {"sampling.presence_penalty",
       [](GenerateRequest& r, float v) { r.mutable_sampling()->set_presence_penalty(v); },
       {-2.0f, 0.0f, 2.0f},
       {-2.01f, 2.01f}},
      {"sampling.frequency_penalty",
       [](GenerateRequest& r, float v) { r.mutable_sampling()->set_frequency_penalty(v); },
       {-2.0f, 0.0f, 2.0f},
       {-2.01f, 2.01f}},
  };
  for (const FloatBorders& row : table) {
    for (const float value : row.good) {
      EXPECT_EQ(FieldAfter([&](GenerateRequest& r) { row.set(r, value); }), "")
          << row.path << " " << value;
    }
    std::vector<float> bad = row.bad;
    bad.insert(bad.end(), {kNan, kInf, -kInf, std::numeric_limits<float>::max(),
                           std::numeric_limits<float>::lowest()});
    for (const float value : bad) {
      EXPECT_EQ(FieldAfter([&](GenerateRequest& r) { row.set(r, value); }), row.path) << value;
    }
  }
}

struct IntBorders {
  const char* path;
  void (*set)(GenerateRequest&, int32_t);
  std::vector<int32_t> good;
  std::vector<int32_t> bad;
};

TEST_F(RequestValidatorTest, Fault_U1_EveryIntegerAtItsBorders) {
  const std::vector<IntBorders> table = {
      {"sampling.top_k",
       [](GenerateRequest& r, int32_t v) { r.mutable_sampling()->set_top_k(v); },
       {-1, 0, 1, 512, 1 << 30, kMax32},
       {-2, kMin32}},
      {"n",
       [](GenerateRequest& r, int32_t v) { r.set_n(v); },
       {1, 16},
       {0, -1, 17, kMin32, kMax32}},
      {"stop.max_tokens",
       [](GenerateRequest& r, int32_t v) { r.mutable_stop()->set_max_tokens(v); },
       {0, 1, kMax32},
       {-1, kMin32}},
      {"stop.min_tokens",
       [](GenerateRequest& r, int32_t v) { r.mutable_stop()->set_min_tokens(v); },
       {0, 1, 246},
       {-1, 247, kMin32, kMax32}},
      {"output.logprobs",
       [](GenerateRequest& r, int32_t v) { r.mutable_output()->set_logprobs(v); },
       {0, 1, 20},
       {-1, 21, kMin32, kMax32}},
      {"output.prompt_logprobs",
       [](GenerateRequest& r, int32_t v) { r.mutable_output()->set_prompt_logprobs(v); },
       {0, 1, 20},
       {-1, 21, kMin32, kMax32}},
      {"priority",
       [](GenerateRequest& r, int32_t v) { r.set_priority(v); },
       {kMin32, -1, 0, 1, kMax32},
       {}},
      {"prefix_cache",
       [](GenerateRequest& r, int32_t v) {
         r.set_prefix_cache(static_cast<v1::PrefixCachePolicy>(v));
       },
       {0, 1, 2},
       {-1, 3, kMin32, kMax32}},
      {"reservation",
       [](GenerateRequest& r, int32_t v) { r.set_reservation(static_cast<v1::Reservation>(v)); },
       {0, 1, 2},
       {-1, 3, kMin32, kMax32}},
  };
  for (const IntBorders& row : table) {
    for (const int32_t value : row.good) {
      EXPECT_EQ(FieldAfter([&](GenerateRequest& r) { row.set(r, value); }), "")
          << row.path << " " << value;
    }
    for (const int32_t value : row.bad) {
      EXPECT_EQ(FieldAfter([&](GenerateRequest& r) { row.set(r, value); }), row.path) << value;
    }
  }
}

// ---- Lists and strings ------------------------------------------------------------------------

TEST_F(RequestValidatorTest, Fault_U1_EveryListAtItsLimit) {
  const auto items = [&](const std::function<void(GenerateRequest&, int)>& add, int count) {
    GenerateRequest request = WithPrompt(4);
    for (int i = 0; i < count; ++i) add(request, i);
    return Field(request);
  };
  struct Row {
    const char* path;
    int limit;
    std::function<void(GenerateRequest&, int)> add;
  };
  const std::vector<Row> table = {
      {"stop.strings", 16,
       [](GenerateRequest& r, int i) { r.mutable_stop()->add_strings("s" + std::to_string(i)); }},
      {"stop.token_ids", 64,
       [](GenerateRequest& r, int i) { r.mutable_stop()->add_token_ids(i % 512); }},
      {"sampling.allowed_token_ids", 1024,
       [](GenerateRequest& r, int i) { r.mutable_sampling()->add_allowed_token_ids(i % 512); }},
      {"sampling.bad_words", 1024,
       [](GenerateRequest& r, int i) { r.mutable_sampling()->add_bad_words(std::to_string(i)); }},
  };
  for (const Row& row : table) {
    EXPECT_EQ(items(row.add, 0), "") << row.path;
    EXPECT_EQ(items(row.add, 1), "") << row.path;
    EXPECT_EQ(items(row.add, row.limit), "") << row.path;
    EXPECT_EQ(items(row.add, row.limit + 1), row.path);
  }
}

TEST_F(RequestValidatorTest, Fault_R6_StopStringsAndMinTokens) {
  const auto with_stop = [&](const std::string& text) {
    return FieldAfter([&](GenerateRequest& r) { r.mutable_stop()->add_strings(text); });
  };
  EXPECT_EQ(with_stop(""), "stop.strings[0]");
  EXPECT_EQ(with_stop("x"), "");
  EXPECT_EQ(with_stop(std::string(1024, 'x')), "");
  EXPECT_EQ(with_stop(std::string(1025, 'x')), "stop.strings[0]");
  EXPECT_EQ(with_stop(std::string(10'240, 'x')), "stop.strings[0]");
  EXPECT_EQ(FieldAfter([](GenerateRequest& r) {
              r.mutable_stop()->set_max_tokens(4);
              r.mutable_stop()->set_min_tokens(5);
            }),
            "stop.min_tokens");
  EXPECT_EQ(FieldAfter([](GenerateRequest& r) {
              r.mutable_stop()->set_max_tokens(4);
              r.mutable_stop()->set_min_tokens(4);
            }),
            "");
}

TEST_F(RequestValidatorTest, Fault_R4_IdsOutsideTheVocabularyAreNamed) {
  for (const int32_t id : {-1, 512, kMax32, kMin32}) {
    EXPECT_EQ(FieldAfter([&](GenerateRequest& r) { r.mutable_token_ids()->set_ids(3, id); }),
              "token_ids.ids[3]");
    EXPECT_EQ(FieldAfter([&](GenerateRequest& r) { r.mutable_stop()->add_token_ids(id); }),
              "stop.token_ids[0]");
    EXPECT_EQ(
        FieldAfter([&](GenerateRequest& r) { r.mutable_sampling()->add_allowed_token_ids(id); }),
        "sampling.allowed_token_ids[0]");
    EXPECT_EQ(FieldAfter([&](GenerateRequest& r) {
                (*r.mutable_sampling()->mutable_logit_bias())[id] = 1.0f;
              }),
              "sampling.logit_bias[" + std::to_string(id) + "]");
  }
}

TEST_F(RequestValidatorTest, Case_027_LogitBias) {
  const auto bias = [&](int32_t id, float value) {
    return FieldAfter(
        [&](GenerateRequest& r) { (*r.mutable_sampling()->mutable_logit_bias())[id] = value; });
  };
  EXPECT_EQ(bias(511, 5.0f), "");
  EXPECT_EQ(out_.params.sampling.logit_bias.size(), 1u);
  EXPECT_EQ(bias(512, 5.0f), "sampling.logit_bias[512]");
  EXPECT_EQ(bias(-1, 5.0f), "sampling.logit_bias[-1]");
  EXPECT_EQ(bias(3, kNan), "sampling.logit_bias[3]");
  EXPECT_EQ(bias(3, 1e38f), "sampling.logit_bias[3]");
  EXPECT_EQ(bias(3, 100.0f), "");
  EXPECT_EQ(bias(3, -100.0f), "");
  EXPECT_EQ(FieldAfter([](GenerateRequest& r) {
              for (int i = 0; i < 100'000; ++i) {
                (*r.mutable_sampling()->mutable_logit_bias())[i] = 1.0f;
              }
            }),
            "sampling.logit_bias");
}

TEST_F(RequestValidatorTest, Case_028_BothBordersOfPromptIds) {
  const auto prompt = [&](int32_t id) {
    GenerateRequest request;
    request.mutable_token_ids()->add_ids(id);
    return Field(request);
  };
  EXPECT_EQ(prompt(0), "");
  EXPECT_EQ(prompt(511), "");
  EXPECT_EQ(prompt(-1), "token_ids.ids[0]");
  EXPECT_EQ(prompt(512), "token_ids.ids[0]");
  EXPECT_EQ(prompt(kMin32), "token_ids.ids[0]");
}

// ---- Prompts ----------------------------------------------------------------------------------

TEST_F(RequestValidatorTest, Case_025_EmptyPrompts) {
  GenerateRequest nothing;
  EXPECT_EQ(Field(nothing), "input");
  EXPECT_EQ(Field(WithPrompt(0)), "token_ids");
  for (const bool add : {false, true}) {
    GenerateRequest empty_text;
    empty_text.set_text("");
    empty_text.set_add_special_tokens(add);
    EXPECT_EQ(Field(empty_text), "text") << "a tokenizer without BOS";
  }
}

TEST_F(RequestValidatorTest, Fault_R2_PromptAgainstTheContext) {
  EXPECT_EQ(Field(WithPrompt(255)), "");
  EXPECT_EQ(out_.params.max_tokens, 1);
  EXPECT_EQ(Field(WithPrompt(256)), "token_ids");
  EXPECT_EQ(Field(WithPrompt(257)), "token_ids");
  GenerateRequest clamped = WithPrompt(200);
  clamped.mutable_stop()->set_max_tokens(100);
  EXPECT_EQ(Field(clamped), "");
  EXPECT_EQ(out_.params.max_tokens, 56);
  GenerateRequest whole_context = WithPrompt(256);
  whole_context.mutable_stop()->set_max_tokens(0);
  EXPECT_EQ(Field(whole_context), "") << "prompt only may fill the context";
  EXPECT_EQ(out_.params.max_tokens, 0);
}

TEST_F(RequestValidatorTest, Fault_R2_TextIsMeasuredInTokens) {
  GenerateRequest request;
  request.set_text(std::string(255, 'a'));
  EXPECT_EQ(Field(request), "");
  EXPECT_EQ(out_.params.prompt.size(), 255u);
  request.set_text(std::string(256, 'a'));
  EXPECT_EQ(Field(request), "text");
  request.set_text(std::string(32 << 20, 'a'));  // given up early
  EXPECT_EQ(Field(request), "text");
  request.set_text(std::string(256, 'a'));
  request.mutable_stop()->set_max_tokens(0);
  EXPECT_EQ(Field(request), "") << "prompt only may fill the context";
}

TEST_F(RequestValidatorTest, Fault_R3_MaxTokensDefaultsToTheRoomLeft) {
  EXPECT_EQ(Field(WithPrompt(10)), "");
  EXPECT_EQ(out_.params.max_tokens, 246);
  FakeModelOptions small_pool;
  small_pool.num_blocks = 16;
  EXPECT_EQ(Field(WithPrompt(10), small_pool), "");
  EXPECT_EQ(out_.params.max_tokens,
            MaxNewTokens(10, small_pool.max_model_len, 16, small_pool.block_size));
}

TEST_F(RequestValidatorTest, Fault_S3_WhatCanNeverFitIsRefusedWithTheLargestThatFits) {
  FakeModelOptions small_pool;
  small_pool.num_blocks = 16;
  const int64_t fits = MaxFittingTokens(16, small_pool.block_size);
  GenerateRequest request = WithPrompt(60);
  request.mutable_stop()->set_max_tokens(40);
  const grpc::Status status = Build(request, small_pool);
  EXPECT_EQ(ViolatedField(status), "stop.max_tokens");
  EXPECT_NE(status.error_message().find(std::to_string(fits)), std::string::npos)
      << status.error_message();
  request.mutable_stop()->set_max_tokens(static_cast<int32_t>(fits) - 60);
  EXPECT_EQ(Field(request, small_pool), "");
  EXPECT_EQ(Field(WithPrompt(200), small_pool), "token_ids");
}

TEST_F(RequestValidatorTest, GuaranteedRequestsHoldNSequencesAtOnce) {
  GenerateRequest request = WithPrompt(20);
  request.set_reservation(v1::RESERVATION_GUARANTEED);
  request.set_n(4);
  request.mutable_stop()->set_max_tokens(40);
  EXPECT_EQ(Field(request), "");
  request.set_n(5);
  EXPECT_EQ(Field(request), "stop.max_tokens");
}

// ---- Everything else --------------------------------------------------------------------------

TEST_F(RequestValidatorTest, DefaultsAreTheDocumentedOnes) {
  EXPECT_EQ(Field(WithPrompt(3)), "");
  const SamplingParams& sampling = out_.params.sampling;
  EXPECT_EQ(sampling.temperature, 1.0f);
  EXPECT_EQ(sampling.top_k, 0);
  EXPECT_EQ(sampling.top_p, 1.0f);
  EXPECT_EQ(sampling.seed, 77u) << "the drawn one";
  EXPECT_EQ(sampling.num_logprobs, -1);
  EXPECT_EQ(sampling.num_prompt_logprobs, -1);
  EXPECT_EQ(out_.params.n, 1);
  EXPECT_TRUE(out_.params.use_prefix_cache);
  EXPECT_FALSE(out_.params.guaranteed);
  EXPECT_TRUE(out_.output.text);
  EXPECT_TRUE(out_.output.token_ids);
  EXPECT_TRUE(out_.output.skip_special_tokens);
}

TEST_F(RequestValidatorTest, SeedZeroIsASeed) {
  GenerateRequest request = WithPrompt(3);
  request.mutable_sampling()->set_seed(0);
  EXPECT_EQ(Field(request), "");
  EXPECT_EQ(out_.params.sampling.seed, 0u);
}

TEST_F(RequestValidatorTest, AnotherModelIsNotFound) {
  GenerateRequest request = WithPrompt(3);
  request.set_model("fake");
  EXPECT_TRUE(Build(request).ok());
  request.set_model("other");
  EXPECT_EQ(Build(request).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(RequestValidatorTest, Fault_T9_IdsWithControlCharactersAreRefused) {
  for (const std::string id : {"", "a\nb", "\x1b[31m", "a\x7f", "\xc2\x85", "tab\t"}) {
    EXPECT_EQ(FieldAfter([&](GenerateRequest& r) { r.set_request_id(id); }), "request_id") << id;
  }
  EXPECT_EQ(FieldAfter([](GenerateRequest& r) { r.set_request_id(std::string(129, 'x')); }),
            "request_id");
  for (const std::string& id :
       {std::string("a b-C/9"), std::string(128, 'x'), std::string("Zürich")}) {
    EXPECT_EQ(FieldAfter([&](GenerateRequest& r) { r.set_request_id(id); }), "") << id;
  }
}

TEST_F(RequestValidatorTest, Fault_U2_SaltHasAByteLimit) {
  for (const std::string& salt :
       {std::string(), std::string(1, '\0'), std::string("\xff\xfe"), std::string(128, 's')}) {
    EXPECT_EQ(FieldAfter([&](GenerateRequest& r) { r.set_cache_salt(salt); }), "");
    EXPECT_EQ(out_.params.cache_salt, salt);
  }
  EXPECT_EQ(FieldAfter([](GenerateRequest& r) { r.set_cache_salt(std::string(129, 's')); }),
            "cache_salt");
  EXPECT_EQ(FieldAfter([](GenerateRequest& r) { r.set_cache_salt(std::string(65'536, 's')); }),
            "cache_salt");
}

TEST_F(RequestValidatorTest, BadWordsBecomeIdsWithAndWithoutASpace) {
  EXPECT_EQ(FieldAfter([](GenerateRequest& r) { r.mutable_sampling()->add_bad_words("ab"); }), "");
  const auto& words = out_.params.sampling.bad_words;
  ASSERT_EQ(words.size(), 2u);
  EXPECT_EQ(words[0], (std::vector<TokenId>{TokenId{'a'}, TokenId{'b'}}));
  EXPECT_EQ(words[1], (std::vector<TokenId>{TokenId{' '}, TokenId{'a'}, TokenId{'b'}}));
}

TEST_F(RequestValidatorTest, StopIdsOfTheOutputFollowIgnoreEos) {
  FakeModelOptions options;
  options.eos = {TokenId{20}};
  GenerateRequest request = WithPrompt(3);
  request.mutable_stop()->add_token_ids(18);
  EXPECT_EQ(Field(request, options), "");
  EXPECT_EQ(out_.output.stop_token_ids, (std::vector<TokenId>{TokenId{18}, TokenId{20}}));
  request.mutable_stop()->set_ignore_eos(true);
  EXPECT_EQ(Field(request, options), "");
  EXPECT_EQ(out_.output.stop_token_ids, (std::vector<TokenId>{TokenId{18}}));
}

TEST_F(RequestValidatorTest, WithoutATokenizerTextIsRefusedAndIdsWork) {
  FakeModel fake;
  fake.model.tokenizer = nullptr;
  GenerateRequest text;
  text.set_text("hello");
  EXPECT_EQ(ViolatedField(RequestValidator(fake.model).Build(text, 1, nullptr, out_)), "text");
  EXPECT_TRUE(RequestValidator(fake.model).Build(WithPrompt(3), 1, nullptr, out_).ok());
  EXPECT_FALSE(out_.output.text);
  const auto refused = [&](const GenerateRequest& request) {
    return ViolatedField(RequestValidator(fake.model).Build(request, 1, nullptr, out_));
  };
  GenerateRequest bad_words = WithPrompt(3);
  bad_words.mutable_sampling()->add_bad_words("no");
  EXPECT_EQ(refused(bad_words), "sampling.bad_words");
  GenerateRequest stops = WithPrompt(3);
  stops.mutable_stop()->add_strings("stop");
  EXPECT_EQ(refused(stops), "stop.strings");
  GenerateRequest output = WithPrompt(3);
  output.mutable_output()->set_text(true);
  EXPECT_EQ(refused(output), "output.text") << "asked for, it is not left out in silence";
  output.mutable_output()->set_text(false);
  EXPECT_EQ(refused(output), "");
}

TEST_F(RequestValidatorTest, TokenizingStopsWhenTheCallIsCancelled) {
  const FakeModel fake;
  GenerateRequest request;
  request.set_text(std::string(1'000'000, 'a'));
  const std::atomic<bool> cancelled{true};
  EXPECT_EQ(RequestValidator(fake.model).Build(request, 1, &cancelled, out_).error_code(),
            grpc::StatusCode::CANCELLED);
}

TEST(CheckRequest, TheOtherMessagesHaveTheirLimits) {
  v1::AbortRequest abort;
  EXPECT_EQ(ViolatedField(CheckRequest(abort)), "request_id");
  abort.set_request_id("x");
  EXPECT_TRUE(CheckRequest(abort).ok());

  v1::DrainRequest drain;
  EXPECT_TRUE(CheckRequest(drain).ok());
  for (const double bad : {-1.0, 86'401.0, std::nan(""), static_cast<double>(kInf)}) {
    drain.set_timeout_seconds(bad);
    EXPECT_EQ(ViolatedField(CheckRequest(drain)), "timeout_seconds");
  }

  const FakeModel fake;
  const RequestValidator validator(fake.model);
  v1::DetokenizeRequest detokenize;
  detokenize.add_token_ids(512);
  EXPECT_EQ(ViolatedField(validator.Check(detokenize)), "token_ids[0]");
  v1::TokenizeRequest tokenize;
  tokenize.set_model("other");
  EXPECT_EQ(validator.Check(tokenize).error_code(), grpc::StatusCode::NOT_FOUND);
}

}  // namespace
}  // namespace longspan
