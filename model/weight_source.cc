// OpenModel: a GGUF file or a folder becomes one checked view by role. Every check is done before
// the first weight is read.
#include "model/weight_source.h"

#include <sys/stat.h>

#include <cstring>
#include <utility>

#include "core/check.h"
#include "core/log.h"
#include "model/config_check.h"
#include "model/gguf_config.h"
#include "model/gguf_file.h"
#include "model/hf_folder.h"
#include "model/input_file.h"
#include "model/weight_table.h"

namespace longspan {
namespace {

DType NominalDType(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF16:
      return DType::kFloat16;
    case WeightFormat::kBF16:
      return DType::kBFloat16;
    default:
      return DType::kFloat32;
  }
}

// Tensors of open files. What it owns stays as it was checked: files are refused when they change.
class FileWeightSource final : public WeightSource {
 public:
  FileWeightSource(ModelConfig config, VocabularyData vocabulary, WeightTable table,
                   std::vector<InputFile> files)
      : config_(std::move(config)),
        vocabulary_(std::move(vocabulary)),
        table_(std::move(table)),
        files_(std::move(files)) {
    const WeightFormat format = table_.MainFormat();
    config_.weight_format = WeightFormatName(format);
    config_.weight_dtype = NominalDType(format);
  }

  const ModelConfig& config() const override { return config_; }
  const VocabularyData& vocabulary() const override { return vocabulary_; }
  const WeightTensor* Find(WeightRole role, int32_t layer) const override {
    return table_.Find(role, layer);
  }
  Status Read(const WeightTensor& tensor, std::span<std::byte> out) override {
    CHECK(static_cast<int64_t>(out.size()) == tensor.size_bytes, "tensor {}", tensor.name);
    const PlacedWeight& place = table_.Place(tensor);
    return files_[static_cast<size_t>(place.file)].Read(place.offset, out);
  }

 private:
  ModelConfig config_;
  VocabularyData vocabulary_;
  WeightTable table_;
  std::vector<InputFile> files_;
};

// Llama 3's frequency factors as GGUF stores them: a tensor of divisors, one per rotated pair.
Status ReadFrequencyFactors(const GgufFile& gguf, ModelConfig& config) {
  const GgufTensor* tensor = gguf.FindTensor("rope_freqs.weight");
  if (tensor == nullptr) return absl::OkStatus();
  const std::string& file = gguf.file().path();
  const int64_t pairs = config.rope.rotary_dim / 2;
  if (tensor->format != WeightFormat::kF32 || tensor->shape != std::vector{pairs}) {
    return InvalidArgument("{}: tensor rope_freqs.weight is {} of {} bytes, wanted {} F32 values",
                           file, WeightFormatName(tensor->format), tensor->size_bytes, pairs);
  }
  config.rope.freq_factors.resize(static_cast<size_t>(pairs));
  RETURN_IF_ERROR(gguf.file().Read(tensor->offset,
                                   std::as_writable_bytes(std::span(config.rope.freq_factors))));
  return CheckModelConfig(config, file);
}

StatusOr<std::unique_ptr<WeightSource>> OpenGguf(const std::string& path) {
  ASSIGN_OR_RETURN(GgufFile gguf, GgufFile::Open(path));
  ASSIGN_OR_RETURN(ModelConfig config, ReadGgufConfig(gguf));
  RETURN_IF_ERROR(ReadFrequencyFactors(gguf, config));
  ASSIGN_OR_RETURN(VocabularyData vocabulary, ReadGgufVocabulary(gguf, config));
  std::vector<FoundTensor> found;
  for (const GgufTensor& t : gguf.tensors()) {
    found.push_back({t.name, t.format, t.shape, t.size_bytes, 0, t.offset});
  }
  const std::string shown = gguf.file().path();
  ASSIGN_OR_RETURN(WeightTable table,
                   WeightTable::Build(config, WeightNaming::kGguf, found, {shown}, shown));
  std::vector<InputFile> files;
  files.push_back(std::move(gguf).TakeFile());
  return std::make_unique<FileWeightSource>(std::move(config), std::move(vocabulary),
                                            std::move(table), std::move(files));
}

StatusOr<std::unique_ptr<WeightSource>> OpenFolder(const std::string& path) {
  ASSIGN_OR_RETURN(HfDescription description, ReadHfDescription(path));
  ASSIGN_OR_RETURN(HfWeights weights, OpenHfWeights(path));
  std::vector<std::string> names;
  for (const InputFile& file : weights.files) names.push_back(file.path());
  ASSIGN_OR_RETURN(WeightTable table,
                   WeightTable::Build(description.config, WeightNaming::kHuggingFace,
                                      weights.tensors, names, Escaped(path, 512)));
  return std::make_unique<FileWeightSource>(std::move(description.config),
                                            std::move(description.vocabulary), std::move(table),
                                            std::move(weights.files));
}

}  // namespace

StatusOr<std::unique_ptr<WeightSource>> OpenModel(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    return MakeStatus(absl::StatusCode::kNotFound, "{}: cannot be opened: {}", Escaped(path, 512),
                      std::strerror(errno));
  }
  return S_ISDIR(info.st_mode) ? OpenFolder(path) : OpenGguf(path);
}

}  // namespace longspan
