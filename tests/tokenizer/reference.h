// The expected values that make_reference.py wrote, and how they are compared.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "core/ids.h"
#include "tokenizer/tokenizer.h"

namespace longspan {

// tests/tokenizer/data/NAME.json
nlohmann::json ReadReference(const std::string& name);

// The tokenizer.json of a file of tiny tokenizers, with the parts that a variant overrides.
nlohmann::json VariantDocument(const nlohmann::json& reference, const nlohmann::json& variant);

// Ids and text of every case equal the reference; failures name the case.
void ExpectCasesHold(const Tokenizer& tokenizer, const nlohmann::json& cases);

// XXH64 over length (uint32, little endian) and bytes of each text, in hexadecimal.
std::string Digest(std::span<const std::string> texts);

// The sequence of numbers that make_reference.py draws pairs from.
class Lcg {
 public:
  explicit Lcg(uint64_t seed) : state_(seed) {}
  int32_t Next(int32_t limit) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int32_t>((state_ >> 33) % static_cast<uint64_t>(limit));
  }

 private:
  uint64_t state_;
};

// Decode, checked against the incremental detokenizer of the same ids.
std::string DecodeBothWays(const Tokenizer& tokenizer, const std::vector<TokenId>& ids,
                           bool skip_special_tokens);

}  // namespace longspan
