// Writes the tokenizer.json of a byte-level vocabulary whose tokens are given texts, so that id
// order decides what a successor model says.
#include "tests/support/successor_tokenizer.h"

#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/check.h"
#include "tokenizer/tokenizer_json.h"

namespace longspan::testing {
namespace {

std::string ToUtf8(int code_point) {
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xc0 | (code_point >> 6)),
          static_cast<char>(0x80 | (code_point & 0x3f))};
}

// The printable character that stands for each byte in a byte-level vocabulary.
std::array<std::string, 256> ByteCharacters() {
  std::array<std::string, 256> out;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool plain = (byte >= 0x21 && byte < 0x7f) || (byte >= 0xa1 && byte != 0xad);
    out[static_cast<size_t>(byte)] = ToUtf8(plain ? byte : next++);
  }
  return out;
}

std::string Spell(const std::string& bytes) {
  static const std::array<std::string, 256> characters = ByteCharacters();
  std::string out;
  for (const char c : bytes) out += characters[static_cast<unsigned char>(c)];
  return out;
}

}  // namespace

std::unique_ptr<Tokenizer> SuccessorTokenizer(const std::vector<std::string>& tokens, int first_id,
                                              int vocab_size, const std::vector<int>& special_ids) {
  std::map<int, std::string> by_id;
  std::set<std::string> used;
  for (size_t i = 0; i < tokens.size(); ++i) {
    by_id[first_id + static_cast<int>(i)] = Spell(tokens[i]);
    used.insert(Spell(tokens[i]));
  }
  int byte = 0;
  for (int id = 0; id < vocab_size; ++id) {
    if (by_id.count(id) > 0) continue;
    while (byte < 256 && used.count(Spell(std::string(1, static_cast<char>(byte)))) > 0) ++byte;
    by_id[id] = byte < 256 ? Spell(std::string(1, static_cast<char>(byte++)))
                           : "<" + std::to_string(id) + ">";
  }
  nlohmann::json vocab = nlohmann::json::object();
  for (const auto& [id, text] : by_id) vocab[text] = id;
  nlohmann::json added = nlohmann::json::array();
  for (const int id : special_ids) {
    added.push_back({{"id", id},
                     {"content", by_id[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const nlohmann::json byte_level = {{"type", "ByteLevel"},
                                     {"add_prefix_space", false},
                                     {"trim_offsets", true},
                                     {"use_regex", true}};
  const nlohmann::json json = {{"version", "1.0"},
                               {"truncation", nullptr},
                               {"padding", nullptr},
                               {"added_tokens", added},
                               {"normalizer", nullptr},
                               {"pre_tokenizer", byte_level},
                               {"post_processor", nullptr},
                               {"decoder", byte_level},
                               {"model",
                                {{"type", "BPE"},
                                 {"dropout", nullptr},
                                 {"unk_token", nullptr},
                                 {"continuing_subword_prefix", nullptr},
                                 {"end_of_word_suffix", nullptr},
                                 {"fuse_unk", false},
                                 {"byte_fallback", false},
                                 {"ignore_merges", false},
                                 {"vocab", vocab},
                                 {"merges", nlohmann::json::array()}}}};
  auto tokenizer = LoadTokenizerJson(json.dump());
  CHECK(tokenizer.ok(), "{}", StatusMessage(tokenizer.status()));
  return *std::move(tokenizer);
}

}  // namespace longspan::testing
