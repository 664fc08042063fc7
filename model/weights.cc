// Reads each tensor of a source through one reused buffer, checks it for values that are not
// finite, and packs it for the kernels. A packed model is about as large as its file; nothing of
// the file stays open or mapped.
#include "model/weights.h"

#include <utility>

#include "core/check.h"
#include "core/log.h"
#include "model/weight_check.h"

namespace longspan {
namespace {

// Reads tensors of one source through one reused buffer.
class TensorReader {
 public:
  TensorReader(WeightSource& source, MatmulPrecision precision, bool check_weights,
               const std::atomic<bool>* cancelled)
      : source_(source),
        precision_(precision),
        check_weights_(check_weights),
        cancelled_(cancelled) {}

  // Leaves `out` as it is when the model has no such tensor.
  Status ReadMatrix(WeightRole role, int32_t layer, std::unique_ptr<PackedMatrix>& out) {
    const WeightTensor* tensor = source_.Find(role, layer);
    if (tensor == nullptr) return absl::OkStatus();
    RETURN_IF_ERROR(Read(*tensor));
    const KernelStatus status = PackedMatrix::Pack(
        tensor->format, tensor->shape[0], tensor->shape[1], buffer_.data(), precision_, out);
    if (status == KernelStatus::kOk) return absl::OkStatus();
    return InvalidArgument("tensor {}: {} x {} of {} cannot be used: {}", tensor->name,
                           tensor->shape[0], tensor->shape[1], WeightFormatName(tensor->format),
                           KernelStatusText(status));
  }

  Status ReadVector(WeightRole role, int32_t layer, std::vector<float>& out) {
    const WeightTensor* tensor = source_.Find(role, layer);
    if (tensor == nullptr) return absl::OkStatus();
    RETURN_IF_ERROR(Read(*tensor));
    out.resize(static_cast<size_t>(tensor->shape[0]));
    DequantizeRow(tensor->format, buffer_.data(), tensor->shape[0], out.data());
    return absl::OkStatus();
  }

 private:
  Status Read(const WeightTensor& tensor) {
    if (cancelled_ != nullptr && cancelled_->load()) {
      return MakeStatus(absl::StatusCode::kCancelled, "loading was cancelled");
    }
    buffer_.resize(static_cast<size_t>(tensor.size_bytes));
    RETURN_IF_ERROR(source_.Read(tensor, buffer_));
    const Status finite = CheckFinite(tensor, buffer_);
    if (finite.ok() || check_weights_) return finite;
    spdlog::warn("{}", StatusMessage(finite));
    return absl::OkStatus();
  }

  WeightSource& source_;
  const MatmulPrecision precision_;
  const bool check_weights_;
  const std::atomic<bool>* const cancelled_;  // not owned; may be null
  std::vector<std::byte> buffer_;
};

WeightFormat FormatOf(const WeightSource& source, WeightRole role, int32_t layer) {
  const WeightTensor* tensor = source.Find(role, layer);
  CHECK(tensor != nullptr, "layer {}", layer);
  return tensor->format;
}

Status ReadLayer(TensorReader& reader, int32_t layer, LayerWeights& w) {
  for (const auto& [role, vector] :
       {std::pair{WeightRole::kAttentionNorm, &w.attention_norm},
        std::pair{WeightRole::kMlpNorm, &w.mlp_norm}, std::pair{WeightRole::kQueryBias, &w.q_bias},
        std::pair{WeightRole::kKeyBias, &w.k_bias}, std::pair{WeightRole::kValueBias, &w.v_bias},
        std::pair{WeightRole::kAttentionOutputBias, &w.o_bias},
        std::pair{WeightRole::kQueryNorm, &w.q_norm}, std::pair{WeightRole::kKeyNorm, &w.k_norm}}) {
    RETURN_IF_ERROR(reader.ReadVector(role, layer, *vector));
  }
  for (const auto& [role, matrix] :
       {std::pair{WeightRole::kQuery, &w.q}, std::pair{WeightRole::kKey, &w.k},
        std::pair{WeightRole::kValue, &w.v}, std::pair{WeightRole::kAttentionOutput, &w.o},
        std::pair{WeightRole::kGate, &w.gate}, std::pair{WeightRole::kUp, &w.up},
        std::pair{WeightRole::kDown, &w.down}}) {
    RETURN_IF_ERROR(reader.ReadMatrix(role, layer, *matrix));
  }
  return absl::OkStatus();
}

int64_t MatrixBytes(const std::unique_ptr<PackedMatrix>& matrix) {
  return matrix ? matrix->size_bytes() : 0;
}

}  // namespace

int64_t DecoderWeights::SizeBytes() const {
  int64_t bytes = MatrixBytes(embedding) + MatrixBytes(untied_output);
  int64_t floats = static_cast<int64_t>(output_norm.size());
  for (const LayerWeights& w : layers) {
    for (const auto* matrix : {&w.q, &w.k, &w.v, &w.o, &w.gate, &w.up, &w.down})
      bytes += MatrixBytes(*matrix);
    for (const auto* vector : {&w.attention_norm, &w.q_bias, &w.k_bias, &w.v_bias, &w.o_bias,
                               &w.q_norm, &w.k_norm, &w.mlp_norm}) {
      floats += static_cast<int64_t>(vector->size());
    }
  }
  return bytes + floats * static_cast<int64_t>(sizeof(float));
}

StatusOr<DecoderWeights> LoadWeights(WeightSource& source, MatmulPrecision precision,
                                     bool check_weights, const std::atomic<bool>* cancelled) {
  const ModelConfig& config = source.config();
  TensorReader reader(source, precision, check_weights, cancelled);
  DecoderWeights weights;
  RETURN_IF_ERROR(reader.ReadMatrix(WeightRole::kTokenEmbedding, -1, weights.embedding));
  if (!config.tied_embeddings) {
    RETURN_IF_ERROR(reader.ReadMatrix(WeightRole::kOutput, -1, weights.untied_output));
  }
  RETURN_IF_ERROR(reader.ReadVector(WeightRole::kOutputNorm, -1, weights.output_norm));
  weights.layers.resize(static_cast<size_t>(config.num_layers));
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    LayerWeights& w = weights.layers[static_cast<size_t>(layer)];
    RETURN_IF_ERROR(ReadLayer(reader, layer, w));
    w.gate_up_fused =
        FormatOf(source, WeightRole::kGate, layer) == FormatOf(source, WeightRole::kUp, layer);
  }
  return weights;
}

}  // namespace longspan
