// Broken model files, each refused with one sentence that names the file and what is wrong, without
// memory in proportion to what the file claims. The right files they are made from open (the last
// test).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <new>
#include <ostream>
#include <string>
#include <vector>

#include "model/weight_source.h"
#include "tests/support/tiny_models.h"

namespace {

// Bytes asked for since the start, of every thread: what an attempt to open costs at most.
std::atomic<int64_t> allocated_bytes{0};

void* Allocate(size_t size) {
  allocated_bytes += static_cast<int64_t>(size);
  void* p = std::malloc(size == 0 ? 1 : size);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace

// The whole family, so that sanitizers see matching pairs.
void* operator new(size_t size) { return Allocate(size); }
void* operator new[](size_t size) { return Allocate(size); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }

namespace longspan {

using ::longspan::testing::BuildSafetensors;
using ::longspan::testing::Bytes;
using ::longspan::testing::FloatBytes;
using ::longspan::testing::GgufSpec;
using ::longspan::testing::GgufString;
using ::longspan::testing::SafetensorsSpec;
using ::longspan::testing::TemporaryFolder;
using ::longspan::testing::TinyConfig;
using ::longspan::testing::TinyConfigJson;
using ::longspan::testing::TinyGguf;
using ::longspan::testing::TinyTensors;
using ::longspan::testing::WriteModelFolder;
using ::longspan::testing::WriteTinyModel;
using Json = nlohmann::json;

struct BrokenFile {
  std::string name;
  std::string says;                                          // part of the message
  std::function<std::string(const TemporaryFolder&)> write;  // returns the path to open
};
void PrintTo(const BrokenFile& file, std::ostream* out) { *out << file.name; }

namespace {

constexpr uint32_t kU8 = 0, kU32 = 4, kF32 = 6, kString = 8, kArray = 9, kU64 = 10;
constexpr const char* kModel = "llama_untied";
constexpr const char* kQuery = "blk.0.attn_q.weight";

BrokenFile File(std::string name, std::string says, std::string bytes) {
  return {"gguf_" + name, std::move(says),
          [bytes](const TemporaryFolder& folder) { return folder.Write("m.gguf", bytes); }};
}

BrokenFile Gguf(std::string name, std::string says, std::function<void(GgufSpec&)> change) {
  return {"gguf_" + name, std::move(says), [change](const TemporaryFolder& folder) {
            GgufSpec spec = TinyGguf(TinyConfig(kModel));
            change(spec);
            return folder.Write("m.gguf", spec.Build());
          }};
}

BrokenFile Cut(std::string name, std::string says, int64_t keep) {
  return {"gguf_" + name, std::move(says), [keep](const TemporaryFolder& folder) {
            const std::string file = TinyGguf(TinyConfig(kModel)).Build();
            const auto size =
                keep < 0 ? file.size() - static_cast<size_t>(-keep) : static_cast<size_t>(keep);
            return folder.Write("m.gguf", file.substr(0, size));
          }};
}

BrokenFile Config(std::string name, std::string says, std::function<void(Json&)> change) {
  return {"config_" + name, std::move(says), [change](const TemporaryFolder& folder) {
            Json config = TinyConfigJson("toy_t");
            change(config);
            WriteModelFolder(folder, config, TinyTensors(TinyConfig("toy_t")));
            return folder.path();
          }};
}

BrokenFile ConfigText(std::string name, std::string says, std::string text) {
  return {"config_" + name, std::move(says), [text](const TemporaryFolder& folder) {
            WriteTinyModel(folder, "toy_t");
            folder.Write("config.json", text);
            return folder.path();
          }};
}

BrokenFile Weights(std::string name, std::string says,
                   std::function<void(std::vector<SafetensorsSpec>&)> change) {
  return {"weights_" + name, std::move(says), [change](const TemporaryFolder& folder) {
            std::vector<SafetensorsSpec> tensors = TinyTensors(TinyConfig("toy_t"));
            change(tensors);
            WriteModelFolder(folder, TinyConfigJson("toy_t"), tensors);
            return folder.path();
          }};
}

// A right folder, one of whose text files (made when absent) is a hole of some size.
BrokenFile Grown(std::string name, std::string says, std::string file, uintmax_t size) {
  return {std::move(name), std::move(says), [file, size](const TemporaryFolder& folder) {
            WriteTinyModel(folder, "toy_t", 3);
            std::ofstream(folder.Path(file), std::ios::app).flush();
            std::filesystem::resize_file(folder.Path(file), size);
            return folder.path();
          }};
}

BrokenFile Safetensors(std::string name, std::string says, std::string bytes) {
  return {"safetensors_" + name, std::move(says), [bytes](const TemporaryFolder& folder) {
            WriteTinyModel(folder, "toy_t");
            folder.Write("model.safetensors", bytes);
            return folder.path();
          }};
}

BrokenFile CutSafetensors(std::string name, std::string says,
                          std::function<int64_t(int64_t)> size) {
  return {"safetensors_" + name, std::move(says), [size](const TemporaryFolder& folder) {
            WriteTinyModel(folder, "toy_t");
            const std::string path = folder.Path("model.safetensors");
            const auto now = static_cast<int64_t>(std::filesystem::file_size(path));
            std::filesystem::resize_file(path, static_cast<uintmax_t>(size(now)));
            return folder.path();
          }};
}

BrokenFile Index(std::string name, std::string says,
                 std::function<void(const TemporaryFolder&, Json&)> change) {
  return {"index_" + name, std::move(says), [change](const TemporaryFolder& folder) {
            WriteTinyModel(folder, "toy_t", 3);
            std::string text;
            auto tensors = TinyTensors(TinyConfig("toy_t"));
            Json map = Json::object();
            const auto count = static_cast<int>(tensors.size());
            for (int i = 0; i < count; ++i) {
              int shard = 0;
              while (i >= count * (shard + 1) / 3) ++shard;
              map[tensors[static_cast<size_t>(i)].name] =
                  "model-0000" + std::to_string(shard + 1) + "-of-00003.safetensors";
            }
            Json index = {{"weight_map", map}};
            change(folder, index);
            folder.Write("model.safetensors.index.json", index.dump());
            return folder.path();
          }};
}

std::string Header(uint32_t version, uint64_t num_tensors, uint64_t num_keys) {
  return "GGUF" + Bytes(version) + Bytes(num_tensors) + Bytes(num_keys);
}

std::string ArrayOf(uint32_t type, uint64_t count) { return Bytes(type) + Bytes(count); }

SafetensorsSpec& Named(std::vector<SafetensorsSpec>& tensors, const std::string& name) {
  return *std::ranges::find(tensors, name, &SafetensorsSpec::name);
}

std::vector<BrokenFile> GgufStructure() {
  const std::string pad(4096, '\0');
  return {
      File("empty", "ends at byte 0", ""),
      File("three_bytes", "ends at byte 3", "GGU"),
      File("wrong_magic", "is not a GGUF file", "GGML" + pad),
      File("old_ggml", "is not a GGUF file", "lmgg" + pad),
      File("version_0", "GGUF version 0", Header(0, 0, 0) + pad),
      File("version_1", "GGUF version 1", Header(1, 0, 0) + pad),
      File("version_4", "GGUF version 4", Header(4, 0, 0) + pad),
      File("big_endian", "big-endian", Header(3u << 24, 0, 0) + pad),
      File("only_preamble", "general.architecture is missing", Header(3, 0, 0)),
      File("tensor_count_2_63", "claims 9223372036854775808 tensors",
           Header(3, uint64_t{1} << 63, 0) + pad),
      File("key_count_max", "claims 18446744073709551615 metadata keys",
           Header(3, 0, UINT64_MAX) + pad),
      File("key_name_longer_than_file", "the name of metadata key 0 claims",
           Header(3, 0, 1) + Bytes<uint64_t>(1u << 30) + pad),
      File("string_length_max", "key a claims 18446744073709551615 bytes",
           Header(3, 0, 1) + GgufString("a") + Bytes(kString) + Bytes(UINT64_MAX) + pad),
      File("array_length_max", "key a claims 18446744073709551615 elements",
           Header(3, 0, 1) + GgufString("a") + Bytes(kArray) + ArrayOf(kU8, UINT64_MAX) + pad),
      File("array_of_strings_longer_than_file", "key a claims 1000 elements",
           Header(3, 0, 1) + GgufString("a") + Bytes(kArray) + ArrayOf(kString, 1000) + pad),
      File("arrays_nested_too_deep", "nests arrays deeper than 4",
           Header(3, 0, 1) + GgufString("a") + Bytes(kArray) + ArrayOf(kArray, 1) +
               ArrayOf(kArray, 1) + ArrayOf(kArray, 1) + ArrayOf(kArray, 1) + ArrayOf(kU8, 1) +
               pad),
      File("array_of_unknown_type", "value type 77",
           Header(3, 0, 1) + GgufString("a") + Bytes(kArray) + ArrayOf(77, 1) + pad),
      Gguf("unknown_value_type", "value type 13", [](GgufSpec& s) { s.Raw("x", 13, "aaaa"); }),
      Gguf("boolean_of_2", "is a boolean of value 2", [](GgufSpec& s) { s.Raw("x", 7, "\2"); }),
      Gguf("empty_key", "has an empty name", [](GgufSpec& s) { s.U32("", 1); }),
      Gguf("key_twice", "key general.name is given twice",
           [](GgufSpec& s) { s.U32("general.name", 1); }),
      Gguf("same_key_twice", "key llama.block_count is given twice",
           [](GgufSpec& s) { s.U32("llama.block_count", 2); }),
      Gguf("alignment_0", "general.alignment is 0",
           [](GgufSpec& s) { s.U32("general.alignment", 0); }),
      Gguf("alignment_33", "general.alignment is 33",
           [](GgufSpec& s) { s.U32("general.alignment", 33); }),
      Gguf("alignment_2_31", "general.alignment is 2147483648",
           [](GgufSpec& s) { s.U32("general.alignment", 1u << 31); }),
      Gguf("alignment_is_text", "general.alignment has type string",
           [](GgufSpec& s) { s.String("general.alignment", "32"); }),
      Gguf("one_key_more_claimed",
           "m.gguf: ", [](GgufSpec& s) { s.key_count = s.keys.size() + 1; }),
      Gguf("one_key_less_claimed",
           "m.gguf: ", [](GgufSpec& s) { s.key_count = s.keys.size() - 1; }),
      Gguf("one_tensor_more_claimed",
           "m.gguf: ", [](GgufSpec& s) { s.tensor_count = s.tensors.size() + 1; }),
      {"gguf_terabyte_hole", "claims 1099511627776 bytes, wanted at most 16777216 here",
       [](const TemporaryFolder& folder) {
         const std::string path =
             folder.Write("m.gguf", Header(3, 0, 1) + GgufString("a") + Bytes(kString) +
                                        Bytes(uint64_t{1} << 40));
         std::filesystem::resize_file(path, uintmax_t{2} << 40);
         return path;
       }},
      Cut("cut_in_preamble", "ends at byte 20 inside the metadata count", 20),
      Cut("cut_in_metadata", "wanted at most", 1000),
      Cut("cut_after_metadata", "m.gguf: ", 6000),
      Cut("cut_by_one_byte", "cut short?", -1),
      Cut("cut_by_a_page", "cut short?", -4096),
  };
}

std::vector<BrokenFile> GgufTensors() {
  return {
      Gguf("no_dimensions", "has 0 dimensions", [](GgufSpec& s) { s.Find(kQuery).dims = {}; }),
      Gguf("five_dimensions", "has 5 dimensions",
           [](GgufSpec& s) {
             s.Find(kQuery).dims = {48, 96, 1, 1, 1};
           }),
      Gguf("dimension_0", "has a dimension of 0",
           [](GgufSpec& s) {
             s.Find(kQuery).dims = {32, 0};
           }),
      Gguf("dimension_2_63", "has a dimension of 9223372036854775808",
           [](GgufSpec& s) {
             s.Find(kQuery).dims = {32, uint64_t{1} << 63};
           }),
      Gguf("dimensions_overflow", "more bytes than 63 bits",
           [](GgufSpec& s) {
             s.Find(kQuery).dims = {uint64_t{1} << 32, uint64_t{1} << 32};
           }),
      Gguf("bytes_overflow", "more bytes than 63 bits",
           [](GgufSpec& s) {
             s.Find(kQuery).dims = {uint64_t{1} << 31, uint64_t{1} << 31};
           }),
      Gguf("huge_dimension", "cut short?",
           [](GgufSpec& s) {
             s.Find(kQuery).dims = {32, uint64_t{1} << 40};
           }),
      Gguf("unknown_type", "has unknown type 99", [](GgufSpec& s) { s.Find(kQuery).type = 99; }),
      Gguf("removed_type", "has unknown type 4", [](GgufSpec& s) { s.Find(kQuery).type = 4; }),
      Gguf("unsupported_type", "has type IQ4_NL", [](GgufSpec& s) { s.Find(kQuery).type = 20; }),
      Gguf("row_not_whole_blocks", "wanted a multiple of 256 for Q6_K",
           [](GgufSpec& s) { s.Find(kQuery).type = 14; }),
      Gguf("offset_unaligned", "wanted a multiple of 32",
           [](GgufSpec& s) { s.Find(kQuery).offset = 33; }),
      Gguf("offset_past_end", "cut short?",
           [](GgufSpec& s) { s.Find(kQuery).offset = uint64_t{1} << 40; }),
      Gguf("offset_max", "beyond the end of the file",
           [](GgufSpec& s) { s.Find(kQuery).offset = UINT64_MAX - 31; }),
      Gguf("tensors_on_each_other", "overlaps tensor",
           [](GgufSpec& s) { s.Find(kQuery).offset = 0; }),
      Gguf("tensor_name_empty", "has an empty name", [](GgufSpec& s) { s.Find(kQuery).name = ""; }),
      Gguf("tensor_name_long", "the name of tensor",
           [](GgufSpec& s) { s.Find(kQuery).name = std::string(10000, 'x'); }),
      Gguf("tensor_twice", "is listed twice",
           [](GgufSpec& s) { s.Find("blk.0.attn_k.weight").name = "blk.0.attn_v.weight"; }),
      Gguf("tensor_missing", "tensor blk.1.ffn_up.weight is missing",
           [](GgufSpec& s) { s.Remove("blk.1.ffn_up.weight"); }),
      Gguf("embedding_missing", "token_embd.weight",
           [](GgufSpec& s) { s.Remove("token_embd.weight"); }),
      Gguf("tensor_surplus", "tensor blk.2.attn_q.weight is not part",
           [](GgufSpec& s) {
             s.Tensor({"blk.2.attn_q.weight", {4}, 0, std::string(16, 'x'), {}});
           }),
      Gguf("tensor_transposed", "has shape [48, 96], wanted [96, 48]",
           [](GgufSpec& s) {
             s.Find(kQuery).dims = {96, 48};
           }),
      Gguf("heads_times_head_size", "has shape [96, 48], wanted [192, 48]",
           [](GgufSpec& s) {
             s.Set("llama.attention.key_length", kU32, Bytes(uint32_t{32}));
             s.Set("llama.attention.value_length", kU32, Bytes(uint32_t{32}));
             s.Set("llama.rope.dimension_count", kU32, Bytes(uint32_t{32}));
           }),
  };
}

std::vector<BrokenFile> GgufMeaning() {
  return {
      Gguf("architecture_unknown", "general.architecture is \"gemma3\"",
           [](GgufSpec& s) { s.Set("general.architecture", kString, GgufString("gemma3")); }),
      Gguf("architecture_is_number", "general.architecture has type u32",
           [](GgufSpec& s) { s.Set("general.architecture", kU32, Bytes(uint32_t{1})); }),
      Gguf("adapter_file", "general.type is \"adapter\"",
           [](GgufSpec& s) { s.String("general.type", "adapter"); }),
      Gguf("layers_missing", "key llama.block_count is missing",
           [](GgufSpec& s) { s.Remove("llama.block_count"); }),
      Gguf("layers_more", "blk.2.",
           [](GgufSpec& s) { s.Set("llama.block_count", kU32, Bytes(uint32_t{3})); }),
      Gguf("layers_2_32", "llama.block_count is 4294967295, wanted 1 to 1024",
           [](GgufSpec& s) { s.Set("llama.block_count", kU32, Bytes(UINT32_MAX)); }),
      Gguf("layers_per_layer_array", "llama.attention.head_count has type array",
           [](GgufSpec& s) {
             s.Set("llama.attention.head_count", kArray, ArrayOf(kU32, 1) + Bytes(uint32_t{9}));
           }),
      Gguf("context_u64_max", "llama.context_length is 9223372036854775807",
           [](GgufSpec& s) { s.Set("llama.context_length", kU64, Bytes(UINT64_MAX)); }),
      Gguf("eps_missing", "layer_norm_rms_epsilon is missing",
           [](GgufSpec& s) { s.Remove("llama.attention.layer_norm_rms_epsilon"); }),
      Gguf("eps_nan", "RMSNorm epsilon is nan",
           [](GgufSpec& s) {
             s.Set("llama.attention.layer_norm_rms_epsilon", kF32, Bytes(std::nanf("")));
           }),
      Gguf("theta_negative", "RoPE base is -1",
           [](GgufSpec& s) { s.Set("llama.rope.freq_base", kF32, Bytes(-1.0f)); }),
      Gguf("rotary_odd", "number of rotated dimensions is 15",
           [](GgufSpec& s) { s.Set("llama.rope.dimension_count", kU32, Bytes(uint32_t{15})); }),
      Gguf("key_value_lengths_differ", "llama.attention.value_length is 24, wanted 16",
           [](GgufSpec& s) { s.Set("llama.attention.value_length", kU32, Bytes(uint32_t{24})); }),
      Gguf("vocabulary_shorter_than_rows", "tokenizer.ggml.tokens has 2 entries, wanted 256",
           [](GgufSpec& s) {
             s.Set("tokenizer.ggml.tokens", kArray,
                   ArrayOf(kString, 2) + GgufString("a") + GgufString("b"));
           }),
      Gguf("vocabulary_longer_than_rows", "tokenizer.ggml.tokens has 300 entries, wanted 256",
           [](GgufSpec& s) {
             std::string tokens = ArrayOf(kString, 300);
             for (int i = 0; i < 300; ++i) tokens += GgufString(std::to_string(i));
             s.Set("tokenizer.ggml.tokens", kArray, tokens);
           }),
      Gguf("vocabulary_of_numbers", "is an array of u32, wanted of string",
           [](GgufSpec& s) { s.Set("tokenizer.ggml.tokens", kArray, ArrayOf(kU32, 0)); }),
      Gguf("vocab_size_key_differs", "has 256 rows, wanted 300",
           [](GgufSpec& s) { s.U32("llama.vocab_size", 300); }),
      Gguf("eos_beyond_vocabulary", "end-of-text id is 256, wanted 0 to 255",
           [](GgufSpec& s) { s.Set("tokenizer.ggml.eos_token_id", kU32, Bytes(uint32_t{256})); }),
      Gguf("quantization_version_1", "general.quantization_version is 1",
           [](GgufSpec& s) { s.U32("general.quantization_version", 1); }),
  };
}

std::vector<BrokenFile> SafetensorsStructure() {
  const std::string nothing = "{}";
  return {
      Safetensors("empty", "has 0 bytes", ""),
      Safetensors("seven_bytes", "has 7 bytes", "1234567"),
      Safetensors("header_of_0", "claims a header of 0 bytes", Bytes(uint64_t{0}) + "{}"),
      Safetensors("header_is_file_size", "claims a header of 10 bytes, wanted 1 to 2",
                  BuildSafetensors(nothing, "", 10)),
      Safetensors("header_2_63", "claims a header of 9223372036854775808",
                  BuildSafetensors(nothing, "", uint64_t{1} << 63)),
      Safetensors("header_max", "claims a header of 18446744073709551615",
                  BuildSafetensors(nothing, "", UINT64_MAX)),
      Safetensors("header_over_limit", "claims a header of 100000001",
                  BuildSafetensors(nothing, "", 100000001)),
      Safetensors("header_open_brace", "is not valid JSON", BuildSafetensors("{", "")),
      Safetensors("header_array", "the header is a list of 0", BuildSafetensors("[]", "")),
      Safetensors("header_null", "the header is null", BuildSafetensors("null", "")),
      Safetensors("header_ff", "is not valid JSON", BuildSafetensors("\xff\xff", "")),
      Safetensors("header_bom", "byte order mark", BuildSafetensors("\xEF\xBB\xBF{}", "")),
      Safetensors("header_nested", "nested deeper than 64",
                  BuildSafetensors(std::string(100000, '['), "")),
      Safetensors("header_key_twice", "stands twice",
                  BuildSafetensors(R"({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
                                       "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}})",
                                   "x")),
      Safetensors("metadata_number", "__metadata__ key n is 1",
                  BuildSafetensors(R"({"__metadata__": {"n": 1}})", "")),
      Safetensors("no_tensors", "tensor model.embed_tokens.weight is missing",
                  BuildSafetensors("{}", "")),
      Safetensors("shape_overflow", "more than 2^63 bits",
                  BuildSafetensors(R"({"a": {"dtype": "F32", "shape": [4294967296, 4294967296],
                                       "data_offsets": [0, 4]}})",
                                   "1234")),
      CutSafetensors("one_byte_short", "model.safetensors: ", [](int64_t n) { return n - 1; }),
      CutSafetensors("one_byte_long", "model.safetensors: ", [](int64_t n) { return n + 1; }),
      CutSafetensors("cut_at_page",
                     "model.safetensors: ", [](int64_t n) { return n / 4096 * 4096; }),
      CutSafetensors("cut_in_header", "claims a header of", [](int64_t) { return 100; }),
      Weights("missing", "tensor model.layers.1.mlp.up_proj.weight is missing",
              [](auto& tensors) {
                std::erase_if(tensors, [](const SafetensorsSpec& t) {
                  return t.name == "model.layers.1.mlp.up_proj.weight";
                });
              }),
      Weights("surplus", "tensor model.extra is not part of a model of this config",
              [](auto& tensors) {
                tensors.push_back({"model.extra", "F32", {1}, "1234"});
              }),
      Weights("transposed", "has shape [64, 32], wanted [32, 64]",
              [](auto& tensors) {
                Named(tensors, "model.layers.0.self_attn.k_proj.weight").shape = {64, 32};
              }),
      Weights("integers", "has dtype I32, wanted F32, F16 or BF16",
              [](auto& tensors) { Named(tensors, "model.norm.weight").dtype = "I32"; }),
      Weights("doubles", "has dtype F64, wanted F32, F16 or BF16",
              [](auto& tensors) {
                tensors.back().dtype = "F64";
                tensors.back().data += tensors.back().data;
              }),
      Weights("vocabulary_rows", "has shape [256, 64], wanted [512, 64]",
              [](auto& tensors) {
                SafetensorsSpec& embedding = tensors.front();
                embedding.shape = {256, 64};
                embedding.data.resize(embedding.data.size() / 2);
              }),
  };
}

std::vector<BrokenFile> Indexes() {
  static constexpr const char* kName = "model.norm.weight";
  return {
      Index("missing_shard", "model-00009-of-00003.safetensors: cannot be opened",
            [](const auto&, Json& index) {
              index["weight_map"][kName] = "model-00009-of-00003.safetensors";
            }),
      Index("parent_folder", "\"../x.safetensors\" is not a plain name",
            [](const auto&, Json& index) { index["weight_map"][kName] = "../x.safetensors"; }),
      Index("absolute_path", "is not a plain name",
            [](const auto&, Json& index) { index["weight_map"][kName] = "/etc/passwd"; }),
      Index("dot_dot", "\"..\" is not a plain name",
            [](const auto&, Json& index) { index["weight_map"][kName] = ".."; }),
      Index("nul_in_name", "is not a plain name",
            [](const auto&, Json& index) {
              index["weight_map"][kName] = std::string("model\0.safetensors", 18);
            }),
      Index("shard_is_folder", "is not a regular file",
            [](const TemporaryFolder& folder, Json& index) {
              std::filesystem::create_directory(folder.Path("sub"));
              index["weight_map"][kName] = "sub";
            }),
      Index("shard_links_out", "is a link out of the folder",
            [](const TemporaryFolder& folder, Json& index) {
              std::filesystem::create_symlink("/etc/passwd", folder.Path("link"));
              index["weight_map"][kName] = "link";
            }),
      Index("tensor_absent", "does not hold tensor ghost",
            [](const auto&, Json& index) {
              index["weight_map"]["ghost"] = "model-00002-of-00003.safetensors";
            }),
      Index("tensor_unlisted", "holds tensor model.norm.weight, which",
            [](const auto&, Json& index) { index["weight_map"].erase(kName); }),
      Index("tensor_in_two_shards", "holds tensor",
            [](const TemporaryFolder& folder, Json& index) {
              const SafetensorsSpec again{kName, "F32", {64}, std::string(256, 'x')};
              folder.Write("again.safetensors", BuildSafetensors({&again, 1}));
              index["weight_map"]["other"] = "again.safetensors";
            }),
      Index("file_is_number", "is in 5, wanted a file name",
            [](const auto&, Json& index) { index["weight_map"][kName] = 5; }),
      Index("no_map", "has no weight_map",
            [](const auto&, Json& index) { index = Json::object(); }),
      Index("empty_map", "has no weight_map",
            [](const auto&, Json& index) { index["weight_map"] = Json::object(); }),
      Index("too_many_files", "names 600 files, wanted at most 512",
            [](const auto&, Json& index) {
              index["weight_map"] = Json::object();
              for (int i = 0; i < 600; ++i) {
                index["weight_map"]["t" + std::to_string(i)] = std::to_string(i);
              }
            }),
  };
}

std::vector<BrokenFile> Configs() {
  return {
      ConfigText("empty", "config.json: is not valid JSON", ""),
      ConfigText("not_json", "config.json: is not valid JSON", "hello"),
      ConfigText("array", "config.json: is a list of 0", "[]"),
      ConfigText("deep", "nested deeper than 64", std::string(1000000, '[')),
      ConfigText("key_twice", "\"hidden_size\" stands twice",
                 R"({"hidden_size": 64, "hidden_size": 65})"),
      Config("architecture_unknown", "architecture is \"MambaForCausalLM\"",
             [](Json& c) { c["architectures"] = {"MambaForCausalLM"}; }),
      Config("heads_do_not_divide", "10 query heads cannot be shared by 4 KV heads",
             [](Json& c) {
               c["num_attention_heads"] = 10;
               c["num_key_value_heads"] = 4;
             }),
      Config("hidden_2_40", "hidden_size is 1099511627776",
             [](Json& c) { c["hidden_size"] = int64_t{1} << 40; }),
      Config("layers_2_31", "num_hidden_layers is 2147483647",
             [](Json& c) { c["num_hidden_layers"] = 2147483647; }),
      Config("layers_more_than_file", "model.layers.2.",
             [](Json& c) { c["num_hidden_layers"] = 3; }),
      Config("layers_fewer_than_file", "is not part of a model of this config",
             [](Json& c) { c["num_hidden_layers"] = 1; }),
      Config("vocabulary_differs", "has shape [512, 64], wanted [500, 64]",
             [](Json& c) { c["vocab_size"] = 500; }),
      Config("quantized", "option quantization_config",
             [](Json& c) {
               c["quantization_config"] = {{"quant_method", "awq"}};
             }),
      Config("rope_dynamic", "RoPE scaling is \"dynamic\"",
             [](Json& c) {
               c["rope_scaling"] = {{"type", "dynamic"}, {"factor", 2.0}};
             }),
      Grown("config_17_mb", "config.json: has 17825792 bytes, wanted at most", "config.json",
            17 << 20),
      Grown("tokenizer_200_mb", "tokenizer.json: has 209715200 bytes, wanted at most",
            "tokenizer.json", 200 << 20),
      Grown("index_1_tb", "index.json: has 1099511627776 bytes, wanted at most",
            "model.safetensors.index.json", uintmax_t{1} << 40),
      Grown("chat_template_2_mb", "chat_template.jinja: has 2097152 bytes, wanted at most",
            "chat_template.jinja", 2 << 20),
      Config("activation", "hidden_act is \"gelu\"", [](Json& c) { c["hidden_act"] = "gelu"; }),
      Config("eos_beyond_vocabulary", "end-of-text id is 512",
             [](Json& c) { c["eos_token_id"] = 512; }),
  };
}

std::vector<BrokenFile> AllBrokenFiles() {
  std::vector<BrokenFile> all;
  for (auto* part :
       {GgufStructure, GgufTensors, GgufMeaning, SafetensorsStructure, Indexes, Configs}) {
    for (BrokenFile& file : part()) all.push_back(std::move(file));
  }
  return all;
}

class Fault_D6_BrokenFiles : public ::testing::TestWithParam<BrokenFile> {};

TEST_P(Fault_D6_BrokenFiles, IsRefusedInOneSentence) {
  const TemporaryFolder folder;
  const std::string path = GetParam().write(folder);
  const int64_t before = allocated_bytes;
  const auto source = OpenModel(path);
  const int64_t used = allocated_bytes - before;
  ASSERT_FALSE(source.ok());
  const std::string message = StatusMessage(source.status());
  EXPECT_THAT(message, ::testing::HasSubstr(GetParam().says));
  EXPECT_THAT(message, ::testing::HasSubstr(folder.path())) << "the file is named";
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_LT(message.size(), 700u);
  // All allocations together, freed ones too: a few times the half megabyte of the largest file
  // here.
  EXPECT_LT(used, 16 << 20);
}

INSTANTIATE_TEST_SUITE_P(, Fault_D6_BrokenFiles, ::testing::ValuesIn(AllBrokenFiles()),
                         [](const auto& param) { return param.param.name; });

TEST(Fault_D6_RightFiles, OpenThatTheBrokenOnesAreMadeFrom) {
  const TemporaryFolder folder;
  const auto gguf = OpenModel(folder.Write("m.gguf", TinyGguf(TinyConfig(kModel)).Build()));
  EXPECT_TRUE(gguf.ok()) << gguf.status();
  for (const int shards : {1, 3}) {
    const TemporaryFolder model;
    WriteTinyModel(model, "toy_t", shards);
    EXPECT_TRUE(OpenModel(model.path()).ok());
  }
}

// Every prefix of a right file, in steps: no length is mistaken for a whole.
TEST(Fault_D6_CutFiles, NoPrefixOfAGgufFileOpens) {
  const std::string whole = TinyGguf(TinyConfig(kModel)).Build();
  const TemporaryFolder folder;
  for (size_t size = 0; size < whole.size(); size += size < 8000 ? 37 : 8209) {
    EXPECT_FALSE(OpenModel(folder.Write("m.gguf", std::string_view(whole).substr(0, size))).ok())
        << size;
  }
}

}  // namespace
}  // namespace longspan
