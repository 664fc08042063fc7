// Plan, launch and checks behind gpu_decode_problem.h.
#include "tests/kernels/attention/gpu_decode_problem.h"

#include <algorithm>
#include <cstdio>

#include "core/check.h"

namespace longspan {
namespace {

DeviceBuffer BufferOf(int64_t bytes) {
  auto buffer = DeviceBuffer::Allocate(bytes);
  CHECK(buffer.has_value(), "no device memory for {} bytes", bytes);
  return std::move(*buffer);
}

GpuDevice Device(const GpuDecodeOptions& options) {
  GpuDevice device = FindGpuDevice().value();
  if (options.num_ctas > 0) device.num_sms = options.num_ctas;
  return device;
}

}  // namespace

GpuDecodeProblem::GpuDecodeProblem(PagedAttention& problem, const GpuDecodeOptions& options)
    : problem_(problem),
      memory_(problem),
      params_(memory_.device_params()),
      plan_(BufferOf(1)),
      workspace_(BufferOf(1)) {
  status_ = PrepareDecode(params_, Device(options), &setup_);
  if (status_ != KernelStatus::kOk) return;
  status_ = MakeDecodeKvMaps(params_, std::max<int64_t>(1, problem.num_blocks()), &maps_);
  if (status_ != KernelStatus::kOk) return;

  const int32_t num_seqs = params_.num_seqs;
  host_plan_.resize(GpuDecodePlanBytes(setup_.num_ctas, num_seqs));
  plan_ = BufferOf(static_cast<int64_t>(host_plan_.size()));
  workspace_ = BufferOf(DecodeWorkspaceBytes(setup_));
  Check(workspace_.Fill(options.workspace_fill, stream().handle()));
  const std::vector<std::byte> zeros(DecodeZeroedBytes(setup_));
  Check(workspace_.CopyFrom(zeros, stream().handle()));
  Check(stream().Synchronize());
  int32_t max_q_len = options.max_q_len;
  if (max_q_len == 0) {
    for (int32_t i = 0; i < num_seqs; ++i) {
      const int32_t* cu = problem.params().cu_seqlens_q;
      max_q_len = std::max(max_q_len, cu[i + 1] - cu[i]);
    }
  }
  launch_ = {plan_.data(), max_q_len, workspace_.data(), workspace_.size_bytes(),
             options.overlap_previous};
}

void GpuDecodeProblem::Check(GpuResult result) { CHECK(result.ok(), "{}", result.text()); }

void GpuDecodeProblem::Plan() {
  const AttentionParams& host = problem_.params();
  GpuDecodePlanParams plan;
  plan.cu_seqlens_q = {host.cu_seqlens_q, static_cast<size_t>(host.num_seqs) + 1};
  plan.seq_lens = {host.seq_lens, static_cast<size_t>(host.num_seqs)};
  plan.num_kv_heads = host.num_kv_heads;
  plan.group = host.num_q_heads / host.num_kv_heads;
  plan.window_left = host.window_left;
  plan.num_ctas = setup_.num_ctas;
  const int64_t bytes = PlanGpuDecode(plan, host_plan_);
  Check(plan_.CopyFrom(std::span(host_plan_).first(bytes), stream().handle()));
  Check(stream().Synchronize());
}

bool GpuDecodeProblem::Download() {
  if (!memory_.Download()) return false;
  std::vector<std::byte> arrivals(DecodeZeroedBytes(setup_));
  Check(workspace_.CopyTo(arrivals, stream().handle()));
  Check(stream().Synchronize());
  if (std::any_of(arrivals.begin(), arrivals.end(), [](std::byte b) { return b != std::byte{}; })) {
    std::fprintf(stderr, "an arrival count was not reset\n");
    return false;
  }
  return true;
}

bool GpuDecodeProblem::Run() {
  if (status_ == KernelStatus::kOk) {
    Plan();
    const KernelStatus status = Enqueue();
    if (status == KernelStatus::kOk) return Download();
    status_ = status;
  }
  std::fprintf(stderr, "decode: %s\n", std::string(KernelStatusText(status_)).c_str());
  return false;
}

}  // namespace longspan
