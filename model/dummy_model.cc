// A WeightSource that computes instead of reading: FNV-1a of the tensor's name and splitmix64 over
// the index give the values, scaled by the kind of tensor so that activations stay in range.
// tests/reference/write_tiny_model.py makes the same bits.
#include "model/dummy_model.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "core/check.h"
#include "model/config_check.h"
#include "model/hf_folder.h"
#include "model/weight_names.h"

namespace longspan {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;

// By the end of the tensor's name; the first match counts. Dyadic, so that scaling is exact.
struct Amplitude {
  std::string_view ending;
  float value;
};
constexpr auto kAmplitudes = std::to_array<Amplitude>({
    {"embed_tokens.weight", 0.25f},
    {"lm_head.weight", 0.25f},
    {"q_proj.weight", 0.375f},
    {"k_proj.weight", 0.375f},
    {".bias", 0.5f},
    {".weight", 0.25f},
});

uint64_t Fnv1a64(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return hash;
}

// In [-1, 1), exact in float (splitmix64's upper 24 bits).
float UnitValue(uint64_t state, uint64_t index) {
  uint64_t x = state + (index + 1) * kGolden;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  x ^= x >> 31;
  return static_cast<float>(static_cast<int64_t>(x >> 40) - (1 << 23)) * 0x1p-23f;
}

WeightFormat FormatOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return WeightFormat::kF16;
    case DType::kBFloat16:
      return WeightFormat::kBF16;
    default:
      return WeightFormat::kF32;
  }
}

void Store(WeightFormat format, std::span<const float> values, std::byte* out) {
  if (format == WeightFormat::kF32) {
    std::memcpy(out, values.data(), values.size_bytes());
    return;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits =
        format == WeightFormat::kF16 ? FloatToFloat16(values[i]) : FloatToBFloat16(values[i]);
    std::memcpy(out + 2 * i, &bits, sizeof(bits));
  }
}

class DummyModel final : public WeightSource {
 public:
  DummyModel(ModelConfig config, VocabularyData vocabulary, uint64_t seed)
      : config_(std::move(config)), vocabulary_(std::move(vocabulary)), seed_(seed) {
    const WeightFormat format = FormatOf(config_.weight_dtype);
    config_.weight_format = WeightFormatName(format);
    for (WantedWeight& wanted : WantedWeights(config_, WeightNaming::kHuggingFace)) {
      int64_t bytes = WeightBlockBytes(format);
      for (const int64_t extent : wanted.shape) bytes *= extent;
      WeightTensor tensor{std::move(wanted.name),  wanted.role, wanted.layer, format,
                          std::move(wanted.shape), bytes};
      tensors_.emplace(std::pair(wanted.role, wanted.layer), std::move(tensor));
    }
  }

  const ModelConfig& config() const override { return config_; }
  const VocabularyData& vocabulary() const override { return vocabulary_; }

  const WeightTensor* Find(WeightRole role, int32_t layer) const override {
    const auto found = tensors_.find({role, layer});
    return found == tensors_.end() ? nullptr : &found->second;
  }

  Status Read(const WeightTensor& tensor, std::span<std::byte> out) override {
    CHECK(static_cast<int64_t>(out.size()) == tensor.size_bytes, "tensor {}", tensor.name);
    const int64_t element_bytes = WeightBlockBytes(tensor.format);
    const int64_t count = tensor.size_bytes / element_bytes;
    std::array<float, 1024> values;
    for (int64_t first = 0; first < count; first += std::ssize(values)) {
      const auto part = static_cast<size_t>(std::min<int64_t>(std::ssize(values), count - first));
      FillHashedWeights(tensor.name, seed_, first, std::span(values).first(part));
      Store(tensor.format, std::span(values).first(part), out.data() + first * element_bytes);
    }
    return absl::OkStatus();
  }

 private:
  ModelConfig config_;
  VocabularyData vocabulary_;
  uint64_t seed_;
  std::map<std::pair<WeightRole, int32_t>, WeightTensor> tensors_;
};

}  // namespace

void FillHashedWeights(std::string_view name, uint64_t seed, int64_t first, std::span<float> out) {
  const uint64_t state = Fnv1a64(name) ^ (seed * kGolden);
  const bool is_norm = name.ends_with("norm.weight");
  const auto* amplitude = std::ranges::find_if(
      kAmplitudes, [&](const Amplitude& a) { return name.ends_with(a.ending); });
  CHECK(amplitude != kAmplitudes.end(), "tensor {}", name);
  for (size_t i = 0; i < out.size(); ++i) {
    const float v = UnitValue(state, static_cast<uint64_t>(first) + i);
    out[i] = is_norm ? 1.0f + v * 0.25f : v * amplitude->value;
  }
}

std::unique_ptr<WeightSource> MakeDummyModel(ModelConfig config, VocabularyData vocabulary,
                                             uint64_t seed) {
  const Status checked = CheckModelConfig(config, "config");
  CHECK(checked.ok(), "{}", StatusMessage(checked));
  return std::make_unique<DummyModel>(std::move(config), std::move(vocabulary), seed);
}

StatusOr<std::unique_ptr<WeightSource>> OpenDummyModel(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    ASSIGN_OR_RETURN(HfDescription description, ReadHfDescription(path));
    return MakeDummyModel(std::move(description.config), std::move(description.vocabulary));
  }
  ASSIGN_OR_RETURN(const auto file, OpenModel(path));
  return MakeDummyModel(file->config(), file->vocabulary());
}

}  // namespace longspan
