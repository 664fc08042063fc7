// A trusting walk over a GGUF file's metadata that keeps the tokenizer's values and skips the rest.
#include "tests/tokenizer/gguf_metadata.h"

#include <cstdint>
#include <fstream>
#include <vector>

#include "core/check.h"
#include "tests/support/test_model.h"

namespace longspan {
namespace {

enum ValueType : uint32_t { kBool = 7, kString = 8, kArray = 9 };

class Reader {
 public:
  explicit Reader(const std::string& path) : file_(path, std::ios::binary) {}
  bool is_open() const { return file_.is_open(); }

  template <typename T>
  T Number() {
    T value{};
    file_.read(reinterpret_cast<char*>(&value), sizeof(value));
    CHECK(file_.good());
    return value;
  }
  std::string String() {
    std::string text(Number<uint64_t>(), '\0');
    file_.read(text.data(), static_cast<std::streamsize>(text.size()));
    CHECK(file_.good());
    return text;
  }
  void Skip(uint32_t type) {
    static constexpr int kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (type == kString) {
      String();
    } else if (type == kArray) {
      const uint32_t element = Number<uint32_t>();
      for (uint64_t left = Number<uint64_t>(); left > 0; --left) Skip(element);
    } else {
      file_.seekg(kBytes[type], std::ios::cur);
    }
  }
  std::vector<std::string> Strings() {
    CHECK(Number<uint32_t>() == kString);
    std::vector<std::string> list(Number<uint64_t>());
    for (std::string& text : list) text = String();
    return list;
  }

 private:
  std::ifstream file_;
};

}  // namespace

std::optional<GgufVocabulary> ReadTestModelVocabulary() {
  Reader reader(testing::TestModelPath());
  if (!reader.is_open()) return std::nullopt;
  reader.Number<uint32_t>();  // magic
  reader.Number<uint32_t>();  // version
  reader.Number<uint64_t>();  // tensors
  GgufVocabulary vocabulary;
  for (uint64_t left = reader.Number<uint64_t>(); left > 0; --left) {
    const std::string key = reader.String();
    const uint32_t type = reader.Number<uint32_t>();
    if (key == "tokenizer.ggml.model") {
      vocabulary.model = reader.String();
    } else if (key == "tokenizer.ggml.pre") {
      vocabulary.pre = reader.String();
    } else if (key == "tokenizer.ggml.tokens") {
      vocabulary.tokens = reader.Strings();
    } else if (key == "tokenizer.ggml.merges") {
      vocabulary.merges = reader.Strings();
    } else if (key == "tokenizer.ggml.token_type") {
      reader.Number<uint32_t>();
      vocabulary.token_types.resize(reader.Number<uint64_t>());
      for (int32_t& token_type : vocabulary.token_types) token_type = reader.Number<int32_t>();
    } else if (key == "tokenizer.ggml.bos_token_id") {
      vocabulary.bos_id = reader.Number<uint32_t>();
    } else if (key == "tokenizer.ggml.eos_token_id") {
      vocabulary.eos_id = reader.Number<uint32_t>();
    } else if (key == "tokenizer.ggml.unknown_token_id") {
      vocabulary.unk_id = reader.Number<uint32_t>();
    } else if (key == "tokenizer.ggml.add_bos_token") {
      vocabulary.add_bos = reader.Number<uint8_t>() != 0;
    } else {
      reader.Skip(type);
    }
  }
  return vocabulary;
}

}  // namespace longspan
