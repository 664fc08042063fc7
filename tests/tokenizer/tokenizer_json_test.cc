// What a tokenizer.json must not contain: each fault is refused with a message that names it.
#include "tokenizer/tokenizer_json.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/tokenizer/reference.h"

namespace longspan {
namespace {

using nlohmann::json;

std::string ErrorOf(const std::string& text, const TokenizerJsonOptions& options = {}) {
  const auto tokenizer = LoadTokenizerJson(text, options);
  EXPECT_FALSE(tokenizer.ok()) << "was accepted";
  if (tokenizer.ok()) return "";
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
  return StatusMessage(tokenizer.status());
}

struct Fault {
  std::string name;  // part of the message
  std::function<void(json&)> make;
};

void ExpectRefused(const std::string& base, const std::vector<Fault>& faults) {
  const json good = ReadReference(base)["tokenizer"];
  ASSERT_TRUE(LoadTokenizerJson(good.dump()).ok());
  for (const Fault& fault : faults) {
    SCOPED_TRACE(fault.name);
    json bad = good;
    fault.make(bad);
    const std::string error = ErrorOf(bad.dump());
    EXPECT_NE(error.find(fault.name), std::string::npos) << error;
    EXPECT_LT(error.size(), 1000u);
  }
}

json Typed(const std::string& type) { return {{"type", type}}; }

TEST(TokenizerJson, AMillionNestedObjectsAreRefused) {
  std::string text;
  for (int i = 0; i < 1000000; ++i) text += "{\"a\":";
  EXPECT_NE(ErrorOf(text).find("nested deeper than 64 levels"), std::string::npos);
  EXPECT_NE(ErrorOf(std::string(1000000, '[')).find("nested"), std::string::npos);
}

TEST(TokenizerJson, AHugeFileIsRefusedByItsSize) {
  const std::string text(200 << 20, ' ');
  EXPECT_EQ(ErrorOf(text), "tokenizer.json: 209715200 bytes (limit 67108864)");
}

TEST(TokenizerJson, WhatIsNotJsonIsRefused) {
  for (const char* text : {"", "{", "nul", "[1,2", "\"\xFF\"", "{\"a\":\"\\ud800\"}", "{} x",
                           "\xFF\xFE", "{\"a\":1e999}"}) {
    EXPECT_NE(ErrorOf(text).find("tokenizer.json: is not valid JSON"), std::string::npos) << text;
  }
  for (const char* text : {"[]", "null", "3", "\"x\""}) {
    EXPECT_EQ(ErrorOf(text), "tokenizer.json: must be an object");
  }
}

TEST(TokenizerJson, ARepeatedKeyIsRefused) {
  EXPECT_NE(ErrorOf(R"({"model":{"vocab":{"a":0,"b":1,"a":2}}})").find("key \"a\" stands twice"),
            std::string::npos);
}

TEST(TokenizerJson, WrongIdsAreRefused) {
  ExpectRefused(
      "byte_level",
      {
          {"id -1 is out of range", [](json& d) { d["model"]["vocab"]["a"] = -1; }},
          {"is out of range", [](json& d) { d["model"]["vocab"]["a"] = 4294967296; }},
          {"must be an integer", [](json& d) { d["model"]["vocab"]["a"] = 1e3; }},
          {"must be an integer", [](json& d) { d["model"]["vocab"]["a"] = "1"; }},
          {"must be an integer", [](json& d) { d["model"]["vocab"]["a"] = UINT64_MAX; }},
          {"appears twice", [](json& d) { d["model"]["vocab"]["a"] = d["model"]["vocab"]["b"]; }},
          {"the vocabulary is empty", [](json& d) { d["model"]["vocab"] = json::object(); }},
          {"must be an object", [](json& d) { d["model"]["vocab"] = json::array(); }},
          {"\"vocab\" is missing", [](json& d) { d["model"].erase("vocab"); }},
          {"is added twice", [](json& d) { d["added_tokens"].push_back(d["added_tokens"][0]); }},
          {"is another token's", [](json& d) { d["added_tokens"][0]["id"] = 5; }},
          {"has another id already",
           [](json& d) {
             d["added_tokens"][0]["id"] = 5000;
             d["added_tokens"][0]["content"] = "a";
           }},
          {"id -3 is out of range", [](json& d) { d["added_tokens"][0]["id"] = -3; }},
          {"id 4194304 is out of range", [](json& d) { d["added_tokens"][0]["id"] = 1 << 22; }},
      });
}

TEST(TokenizerJson, GapsInTheIdsAreLegalAndReadBackAsNothing) {
  json document = ReadReference("byte_level")["tokenizer"];
  document["added_tokens"].push_back(
      {{"id", 5000}, {"content", "<far>"}, {"special", true}, {"normalized", false}});
  const auto tokenizer = LoadTokenizerJson(document.dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), 5001);
  EXPECT_EQ((*tokenizer)->Decode(std::vector<TokenId>{TokenId{5000}, TokenId{4000}}, false),
            "<far>");
}

TEST(TokenizerJson, WrongMergesAreRefused) {
  ExpectRefused(
      "byte_level",
      {
          {"token \"nowhere\" is not in the vocabulary",
           [](json& d) {
             d["model"]["merges"].push_back({"a", "nowhere"});
           }},
          {"token \"qz\" is not in the vocabulary",
           [](json& d) {
             d["model"]["merges"].push_back({"q", "z"});
           }},
          {"is not \"left right\"", [](json& d) { d["model"]["merges"].push_back("ab"); }},
          {"is not \"left right\"", [](json& d) { d["model"]["merges"].push_back("a b c"); }},
          {"is not a pair of strings",
           [](json& d) {
             d["model"]["merges"].push_back({"a", "b", "c"});
           }},
          {"is not a pair of strings", [](json& d) { d["model"]["merges"].push_back(7); }},
          {"must be a list", [](json& d) { d["model"]["merges"] = "a b"; }},
      });
}

TEST(TokenizerJson, MergesWhoseRanksRunInACircleStillEnd) {
  json document = ReadReference("byte_level")["tokenizer"];
  // "qqqq" from "qq" + "qq" is ranked before "qq" from "q" + "q", and so on upwards.
  json& vocabulary = document["model"]["vocab"];
  int32_t next = 6000;
  for (const char* text : {"qq", "qqq", "qqqq"}) vocabulary[text] = next++;
  document["model"]["merges"] = json::array();
  for (const char* merge : {"qq qq", "qqq q", "q qq", "qq q", "q q"}) {
    document["model"]["merges"].push_back(merge);
  }
  const auto tokenizer = LoadTokenizerJson(document.dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto ids = (*tokenizer)->Encode(std::string(999, 'q'), {});
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ((*tokenizer)->Decode(*ids, false), std::string(999, 'q'));
}

TEST(TokenizerJson, WrongAddedTokensAreRefused) {
  ExpectRefused(
      "byte_level",
      {
          {"content of 0 bytes (limit 1 to 256)",
           [](json& d) { d["added_tokens"][0]["content"] = ""; }},
          {"content of 257 bytes",
           [](json& d) { d["added_tokens"][0]["content"] = std::string(257, 'x'); }},
          {"added_tokens[0].content: must be a string",
           [](json& d) { d["added_tokens"][0]["content"] = 3; }},
          {"\"id\" is missing", [](json& d) { d["added_tokens"][0].erase("id"); }},
          {"field \"colour\" is not supported",
           [](json& d) { d["added_tokens"][0]["colour"] = 1; }},
          {"normalized content of 0 bytes",
           [](json& d) {
             d["added_tokens"][6]["content"] = "xyz";
             d["normalizer"] = {
                 {"type", "Replace"}, {"pattern", {{"String", "xyz"}}}, {"content", ""}};
           }},
          {"the same normalized content",
           [](json& d) {
             d["added_tokens"].push_back(
                 {{"id", 900}, {"content", "aBC"}, {"normalized", true}, {"special", false}});
             d["normalizer"] = Typed("Lowercase");
           }},
      });
}

TEST(TokenizerJson, UnknownComponentsAreRefusedByName) {
  std::vector<Fault> faults = {
      {"field \"extra\" is not supported", [](json& d) { d["extra"] = 1; }},
      {"model: type \"Unigram\" is not supported", [](json& d) { d["model"]["type"] = "Unigram"; }},
      {"\"type\" is missing", [](json& d) { d["model"].erase("type"); }},
      {"dropout is not supported", [](json& d) { d["model"]["dropout"] = 0.1; }},
      {"continuing_subword_prefix is not supported",
       [](json& d) { d["model"]["continuing_subword_prefix"] = "##"; }},
      {"end_of_word_suffix is not supported",
       [](json& d) { d["model"]["end_of_word_suffix"] = "</w>"; }},
      {"unk_token \"<none>\" is not in the vocabulary",
       [](json& d) { d["model"]["unk_token"] = "<none>"; }},
      {"byte_fallback together with ByteLevel",
       [](json& d) { d["model"]["byte_fallback"] = true; }},
      {"a step after ByteLevel",
       [](json& d) {
         d["pre_tokenizer"] = {{"type", "Sequence"},
                               {"pretokenizers", {d["pre_tokenizer"], Typed("Digits")}}};
       }},
      {"ByteLevel must be the pre_tokenizer's last step",
       [](json& d) { d["pre_tokenizer"] = nullptr; }},
      {"too many steps (limit 64)",
       [](json& d) {
         d["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", json(65, Typed("Digits"))}};
       }},
      {"a tokenizer without a decoder", [](json& d) { d["decoder"] = nullptr; }},
      {"a tokenizer without a decoder", [](json& d) { d.erase("decoder"); }},
      {"\"behavior\" is missing",
       [](json& d) {
         d["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"String", "x"}}}};
       }},
      {"behavior: \"Sideways\"",
       [](json& d) {
         d["pre_tokenizer"] = {
             {"type", "Split"}, {"pattern", {{"String", "x"}}}, {"behavior", "Sideways"}};
       }},
      {"an empty string",
       [](json& d) {
         d["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", "x"}};
       }},
      {"\\w is not supported",
       [](json& d) {
         d["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Regex", "\\w"}}}, {"content", "x"}};
       }},
      {"must be one of String, Regex",
       [](json& d) {
         d["normalizer"] = {{"type", "Replace"}, {"pattern", json::object()}, {"content", "x"}};
       }},
      {"must be a list",
       [](json& d) {
         d["normalizer"] = {{"type", "Sequence"}, {"normalizers", 3}};
       }},
      {"ByteLevel together with other decoders",
       [](json& d) {
         d["decoder"] = {{"type", "Sequence"}, {"decoders", {d["decoder"], Typed("Fuse")}}};
       }},
  };
  for (const char* type :
       {"BertNormalizer", "Precompiled", "Nmt", "StripAccents", "Strip", "ByteLevel", "Foo\n"}) {
    faults.push_back({"is not supported", [type](json& d) { d["normalizer"] = Typed(type); }});
  }
  for (const char* type :
       {"BertPreTokenizer", "Whitespace", "WhitespaceSplit", "Punctuation", "UnicodeScripts"}) {
    faults.push_back({std::string("pre_tokenizer: type \"") + type + "\" is not supported",
                      [type](json& d) { d["pre_tokenizer"] = Typed(type); }});
  }
  for (const char* type : {"BertProcessing", "RobertaProcessing"}) {
    faults.push_back({std::string("post_processor: type \"") + type + "\" is not supported",
                      [type](json& d) { d["post_processor"] = Typed(type); }});
  }
  for (const char* type : {"WordPiece", "BPEDecoder", "CTC"}) {
    faults.push_back({std::string("decoder: type \"") + type + "\" is not supported",
                      [type](json& d) { d["decoder"] = Typed(type); }});
  }
  ExpectRefused("byte_level", faults);
}

TEST(TokenizerJson, FaultsOfSentencePieceTokenizersAreRefused) {
  const auto strip = [](json& d) -> json& { return d["decoder"]["decoders"][3]; };
  ExpectRefused(
      "sentencepiece",
      {
          {"token \"<0x41>\" is missing", [](json& d) { d["model"]["vocab"].erase("<0x41>"); }},
          {"stop: must be 0", [&](json& d) { strip(d)["stop"] = 1; }},
          {"start: must be from 0 to 1024", [&](json& d) { strip(d)["start"] = -1; }},
          {"content must be a space", [&](json& d) { strip(d)["content"] = "x"; }},
          {"not supported in this place",
           [](json& d) { std::swap(d["decoder"]["decoders"][0], d["decoder"]["decoders"][1]); }},
          {"after Fuse only", [](json& d) { d["decoder"]["decoders"].erase(2); }},
          {"an empty decoder", [](json& d) { d["decoder"]["decoders"] = json::array(); }},
          {"id 9999 is not in the vocabulary",
           [](json& d) { d["post_processor"]["special_tokens"]["<s>"]["ids"] = {9999}; }},
          {"is not in special_tokens",
           [](json& d) { d["post_processor"]["special_tokens"] = json::object(); }},
          {"exactly once", [](json& d) { d["post_processor"]["single"] = json::array(); }},
          {"only sequence A",
           [](json& d) { d["post_processor"]["single"][1]["Sequence"]["id"] = "B"; }},
          {"replacement must be one character",
           [](json& d) {
             d["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "__"}};
           }},
          {"contradicts prepend_scheme",
           [](json& d) {
             d["pre_tokenizer"] = {
                 {"type", "Metaspace"}, {"replacement", "_"}, {"add_prefix_space", false}};
           }},
          {"prepend_scheme: \"often\"",
           [](json& d) {
             d["pre_tokenizer"] = {
                 {"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "often"}};
           }},
      });
}

TEST(TokenizerJson, BosAndEosMustBeInTheVocabulary) {
  const std::string text = ReadReference("sentencepiece")["tokenizer"].dump();
  const auto tokenizer = LoadTokenizerJson(text, {.bos_id = 1, .eos_id = 2});
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_EQ((*tokenizer)->bos(), TokenId{1});
  EXPECT_EQ((*tokenizer)->eos(), TokenId{2});
  EXPECT_EQ((*tokenizer)->kind(), "sentencepiece_bpe");
  EXPECT_EQ(ErrorOf(text, {.bos_id = -1, .eos_id = {}}),
            "bos_token_id: id -1 is out of range (limit 0 to 4194303)");
  EXPECT_EQ(ErrorOf(text, {.bos_id = {}, .eos_id = 100000}),
            "eos_token_id: id 100000 is not in the vocabulary");
}

}  // namespace
}  // namespace longspan
