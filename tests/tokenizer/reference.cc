// Loads the expected values and compares; the digest and the random pairs are those of
// make_reference.py.
#include "tests/tokenizer/reference.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <fstream>

#include "tokenizer/incremental_detokenizer.h"
#include "tokenizer/utf8.h"

namespace longspan {
namespace {

using nlohmann::json;

std::vector<TokenId> ToIds(const json& list) {
  std::vector<TokenId> ids;
  for (const json& id : list) ids.push_back(TokenId{id.get<int32_t>()});
  return ids;
}

void ExpectIds(const Tokenizer& tokenizer, const std::string& text, bool parse_special,
               const std::vector<TokenId>& expected) {
  const auto ids =
      tokenizer.Encode(text, {.add_special_tokens = false, .parse_special_tokens = parse_special});
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(json(*ids), json(expected))
      << json(text) << " special tokens parsed: " << parse_special;
}

}  // namespace

json ReadReference(const std::string& name) {
  std::ifstream file(std::string(LONGSPAN_TOKENIZER_TEST_DATA) + "/" + name + ".json");
  return json::parse(file);
}

json VariantDocument(const json& reference, const json& variant) {
  json document = reference["tokenizer"];
  for (const auto& [key, value] : variant["overrides"].items()) {
    if (key == "model") {
      document["model"].update(value);
    } else {
      document[key] = value;
    }
  }
  return document;
}

void ExpectCasesHold(const Tokenizer& tokenizer, const json& cases) {
  for (const json& item : cases) {
    const auto text = item["text"].get<std::string>();
    const std::vector<TokenId> ids = ToIds(item["ids"]);
    ExpectIds(tokenizer, text, false, ids);
    EXPECT_EQ(json(DecodeBothWays(tokenizer, ids, false)), item.value("decoded", json(text)));
    const std::vector<TokenId> special_ids = ToIds(item.value("special_ids", item["ids"]));
    ExpectIds(tokenizer, text, true, special_ids);
    if (!item.contains("special_ids")) continue;
    EXPECT_EQ(json(DecodeBothWays(tokenizer, special_ids, false)), item["special_decoded"]);
    EXPECT_EQ(json(DecodeBothWays(tokenizer, special_ids, true)), item["special_skipped"]);
  }
}

std::string Digest(std::span<const std::string> texts) {
  std::string bytes;
  for (const std::string& text : texts) {
    const uint32_t size = static_cast<uint32_t>(text.size());
    for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(size >> shift));
    bytes += text;
  }
  return fmt::format("{:016x}", XXH64(bytes.data(), bytes.size(), 0));
}

std::string DecodeBothWays(const Tokenizer& tokenizer, const std::vector<TokenId>& ids,
                           bool skip_special_tokens) {
  const std::string whole = tokenizer.Decode(ids, skip_special_tokens);
  IncrementalDetokenizer stream(tokenizer, skip_special_tokens,
                                IncrementalDetokenizer::Start::kDocument);
  std::string joined;
  for (TokenId id : ids) {
    const std::string text = stream.Append(id);
    EXPECT_TRUE(IsValidUtf8(text)) << "half a character after id " << ToInt(id);
    joined += text;
  }
  joined += stream.Finish();
  EXPECT_EQ(joined, whole);
  return whole;
}

}  // namespace longspan
