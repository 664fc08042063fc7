// Plans, launches and checks behind sm80_gpu_problem.h.
#include "tests/kernels/attention/sm80_gpu_problem.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "core/check.h"

namespace longspan {
namespace {

void Check(GpuResult result) { CHECK(result.ok(), "{}", result.text()); }

DeviceBuffer BufferOf(int64_t bytes) {
  auto buffer = DeviceBuffer::Allocate(bytes);
  CHECK(buffer.has_value(), "no device memory for {} bytes", bytes);
  return std::move(*buffer);
}

DeviceBuffer FloatsPerHead(const AttentionParams& params, const float** values, GpuStream& stream) {
  DeviceBuffer buffer = BufferOf(params.num_q_heads * int64_t{sizeof(float)});
  if (*values == nullptr) return buffer;
  const std::span<const float> host(*values, static_cast<size_t>(params.num_q_heads));
  Check(buffer.CopyFrom(std::as_bytes(host), stream.handle()));
  *values = buffer.as<float>();
  return buffer;
}

std::span<const int32_t> CumulativeLengths(const AttentionParams& host) {
  return {host.cu_seqlens_q, static_cast<size_t>(host.num_seqs) + 1};
}

std::span<const int32_t> Lengths(const AttentionParams& host) {
  return {host.seq_lens, static_cast<size_t>(host.num_seqs)};
}

}  // namespace

std::string NoSm80Device() {
  std::string reason;
  const std::optional<GpuDevice> device = FindGpuDevice(&reason);
  if (!device) return "no GPU: " + reason;
  if (device->compute_capability < 80) {
    return device->name + " has compute capability " + std::to_string(device->compute_capability) +
           "; these kernels need 80";
  }
  return "";
}

Sm80GpuProblem::Sm80GpuProblem(PagedAttention& problem, bool decode, int32_t num_ctas,
                               uint8_t workspace_fill)
    : problem_(problem),
      decode_(decode),
      memory_(problem),
      params_(memory_.device_params()),
      sinks_(FloatsPerHead(params_, &params_.sinks, stream())),
      slopes_(FloatsPerHead(params_, &params_.alibi_slopes, stream())),
      plan_(BufferOf(1)),
      workspace_(BufferOf(1)) {
  const int32_t num_seqs = params_.num_seqs;
  const int32_t* cu = problem.params().cu_seqlens_q;
  GpuDevice device = FindGpuDevice().value();
  if (decode) {
    if (num_ctas > 0) device.num_sms = num_ctas;
    status_ = PrepareDecode(params_, device, &decode_setup_, GpuLine::kSm80);
    if (status_ != KernelStatus::kOk) return;
    host_plan_.resize(GpuDecodePlanBytes(decode_setup_.num_ctas, num_seqs));
    workspace_ = BufferOf(DecodeWorkspaceBytes(decode_setup_));
    Check(workspace_.Fill(workspace_fill, stream().handle()));
    const std::vector<std::byte> zeros(DecodeZeroedBytes(decode_setup_));
    Check(workspace_.CopyFrom(zeros, stream().handle()));
    Check(stream().Synchronize());
  } else {
    status_ = PrepareSm80Prefill(params_, device, &prefill_setup_);
    if (status_ != KernelStatus::kOk) return;
    const int64_t num_blocks =
        PrefillMaxBlocks(cu[num_seqs], num_seqs, params_.num_q_heads / params_.num_kv_heads,
                         prefill_setup_.block_rows);
    host_plan_.resize(num_blocks * sizeof(PrefillBlock));
  }
  plan_ = BufferOf(static_cast<int64_t>(host_plan_.size()));
  int32_t max_q_len = 0;
  for (int32_t i = 0; i < num_seqs; ++i) max_q_len = std::max(max_q_len, cu[i + 1] - cu[i]);
  decode_launch_ = {plan_.data(), max_q_len, workspace_.data(), workspace_.size_bytes(), false};
  prefill_launch_ = {plan_.as<PrefillBlock>(),
                     static_cast<int64_t>(host_plan_.size() / sizeof(PrefillBlock))};
}

void Sm80GpuProblem::Plan() {
  const AttentionParams& host = problem_.params();
  const int32_t group = host.num_q_heads / host.num_kv_heads;
  if (decode_) {
    const int64_t bytes = PlanGpuDecode({CumulativeLengths(host), Lengths(host), host.num_kv_heads,
                                         group, host.window_left, decode_setup_.num_ctas},
                                        host_plan_);
    Check(plan_.CopyFrom(std::span(host_plan_).first(bytes), stream().handle()));
  } else {
    PlanPrefill({CumulativeLengths(host), Lengths(host), group, prefill_setup_.block_rows,
                 host.causal, host.window_left, host.window_right},
                {reinterpret_cast<PrefillBlock*>(host_plan_.data()),
                 host_plan_.size() / sizeof(PrefillBlock)});
    Check(plan_.CopyFrom(host_plan_, stream().handle()));
  }
  Check(stream().Synchronize());
}

KernelStatus Sm80GpuProblem::Enqueue() {
  if (!decode_) {
    return LaunchSm80Prefill(prefill_setup_, params_, prefill_launch_, stream().handle());
  }
  return LaunchDecode(decode_setup_, params_, {}, decode_launch_, stream().handle());
}

std::string Sm80GpuProblem::Download() {
  if (!memory_.Download()) return "a device error or a changed guard word (stderr says which)";
  if (!decode_) return "";
  std::vector<std::byte> arrivals(DecodeZeroedBytes(decode_setup_));
  Check(workspace_.CopyTo(arrivals, stream().handle()));
  Check(stream().Synchronize());
  const bool reset =
      std::all_of(arrivals.begin(), arrivals.end(), [](std::byte b) { return b == std::byte{}; });
  return reset ? "" : "an arrival count was not reset";
}

std::string Sm80GpuProblem::Run() {
  if (status_ != KernelStatus::kOk) return "set-up: " + std::string(KernelStatusText(status_));
  Plan();
  const KernelStatus status = Enqueue();
  if (status != KernelStatus::kOk) return "launch: " + std::string(KernelStatusText(status));
  return Download();
}

std::string Differences(PagedAttention& problem, const OracleOutput& oracle, double o_tolerance,
                        double lse_tolerance) {
  const AttentionParams& p = problem.params();
  std::string first;
  int64_t num_bad = 0, num_all = 0;
  for (int32_t seq = 0; seq < p.num_seqs; ++seq) {
    for (int64_t token = p.cu_seqlens_q[seq]; token < p.cu_seqlens_q[seq + 1]; ++token) {
      for (int32_t head = 0; head < p.num_q_heads; ++head) {
        const int64_t row = token * p.num_q_heads + head;
        for (int32_t d = -1; d < p.head_dim; ++d) {
          const double expected = d < 0 ? oracle.lse[row] : oracle.o[row * p.head_dim + d];
          const double got = d < 0 ? problem.lse(token, head) : problem.output(token, head, d);
          const double tolerance = (d < 0 ? lse_tolerance : o_tolerance) *
                                   (1.0 + (std::isfinite(expected) ? std::fabs(expected) : 0.0));
          ++num_all;
          const bool good =
              std::isfinite(expected) ? std::fabs(got - expected) <= tolerance : got == expected;
          if (good) continue;
          if (num_bad++ > 0) continue;
          first = "sequence " + std::to_string(seq) + " (length " +
                  std::to_string(p.seq_lens[seq]) + "), query " +
                  std::to_string(token - p.cu_seqlens_q[seq]) + " of " +
                  std::to_string(p.cu_seqlens_q[seq + 1] - p.cu_seqlens_q[seq]) + ", head " +
                  std::to_string(head) + (d < 0 ? ", lse" : ", o column " + std::to_string(d)) +
                  ": expected " + std::to_string(expected) + ", got " + std::to_string(got);
        }
      }
    }
  }
  if (num_bad == 0) return "";
  return "first bad: " + first + "\n" + std::to_string(num_bad) + " of " + std::to_string(num_all) +
         " values are bad; worst: " + CompareWithOracle(p, oracle, o_tolerance, lse_tolerance);
}

std::string AgainstOracle(PagedAttention& problem, const OracleOutput& oracle) {
  const double tolerance = 4.0 * (problem.params().q_dtype == DType::kBFloat16 ? 0x1p-9 : 0x1p-12);
  return Differences(problem, oracle, tolerance, 3e-5);
}

double RelativeError(PagedAttention& problem, const OracleOutput& oracle) {
  const AttentionParams& p = problem.params();
  double difference = 0.0, norm = 0.0;
  for (int64_t token = 0; token < p.cu_seqlens_q[p.num_seqs]; ++token) {
    for (int32_t head = 0; head < p.num_q_heads; ++head) {
      for (int32_t d = 0; d < p.head_dim; ++d) {
        const double expected = oracle.o[(token * p.num_q_heads + head) * p.head_dim + d];
        const double off = problem.output(token, head, d) - expected;
        difference += off * off;
        norm += expected * expected;
      }
    }
  }
  return std::sqrt(difference / norm);
}

std::string FirstByteApart(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  if (a == b) return "";
  const auto at = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
  return "byte " + std::to_string(at) + " of " + std::to_string(a.size()) + " (rows of o and lse)";
}

}  // namespace longspan
