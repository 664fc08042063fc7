// tokenizer.json from arbitrary text: what is accepted encodes any bytes to ids of its vocabulary,
// and reads every id back as valid UTF-8, whole and as a stream alike.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "tokenizer/incremental_detokenizer.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/utf8.h"

using namespace longspan;

namespace {

void CheckReadsBack(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  for (bool skips_special : {false, true}) {
    const std::string text = tokenizer.Decode(ids, skips_special);
    CHECK(IsValidUtf8(text));
    IncrementalDetokenizer stream(tokenizer, skips_special,
                                  IncrementalDetokenizer::Start::kDocument);
    std::string streamed;
    for (TokenId id : ids) {
      const std::string piece = stream.Append(id);
      CHECK(IsValidUtf8(piece));
      streamed += piece;
    }
    CHECK(streamed + stream.Finish() == text);
  }
}

void CheckEncodes(const Tokenizer& tokenizer, std::string_view text) {
  for (bool parses_special : {false, true}) {
    const auto ids = tokenizer.Encode(text, {.parse_special_tokens = parses_special});
    if (!ids.ok()) {  // a pattern of the file that gives up
      CHECK(ids.status().code() == absl::StatusCode::kInvalidArgument);
      continue;
    }
    for (TokenId id : *ids) CHECK(ToInt(id) >= 0 && ToInt(id) < tokenizer.vocab_size());
    CheckReadsBack(tokenizer, *ids);
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  spdlog::set_level(spdlog::level::off);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = LoadTokenizerJson(text, {.bos_id = 0, .eos_id = {}});
  if (!tokenizer.ok()) {
    CHECK(tokenizer.status().message().size() < 2000 &&
          tokenizer.status().message().find('\n') == std::string::npos);
    return 0;
  }
  CheckEncodes(**tokenizer, "ab  ba'LL \u0301\u0323e 12\n\n3<s>\xED\xA0\x80<tag> \xF0\x9F\x98");
  CheckEncodes(**tokenizer, text.substr(0, 300));
  std::vector<TokenId> all;
  for (int32_t id = -1; id <= std::min((*tokenizer)->vocab_size(), 2000); ++id) {
    all.push_back(TokenId{id});
  }
  CheckReadsBack(**tokenizer, all);
  return 0;
}
