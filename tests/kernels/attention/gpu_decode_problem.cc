// Copies, launches and checks behind gpu_decode_problem.h.
#include "tests/kernels/attention/gpu_decode_problem.h"

#include <algorithm>
#include <cstdio>

#include "core/check.h"

namespace longspan {
namespace {

template <typename T>
DeviceBuffer BufferFor(const std::vector<T>& host) {
  auto buffer = DeviceBuffer::Allocate(static_cast<int64_t>(host.size() * sizeof(T)));
  CHECK(buffer.has_value(), "no device memory for {} bytes", host.size() * sizeof(T));
  return std::move(*buffer);
}

DeviceBuffer BufferOf(int64_t bytes) {
  auto buffer = DeviceBuffer::Allocate(bytes);
  CHECK(buffer.has_value(), "no device memory for {} bytes", bytes);
  return std::move(*buffer);
}

// The device address of what host points to inside an allocation.
template <typename T, typename P>
P* Moved(const DeviceBuffer& device, const std::vector<T>& host, P* pointer) {
  const auto offset =
      reinterpret_cast<const std::byte*>(pointer) - reinterpret_cast<const std::byte*>(host.data());
  return reinterpret_cast<P*>(device.as<std::byte>() + offset);
}

GpuDevice Device(const GpuDecodeOptions& options) {
  GpuDevice device = FindGpuDevice().value();
  if (options.num_ctas > 0) device.num_sms = options.num_ctas;
  return device;
}

}  // namespace

std::string NoDecodeDevice() {
  std::string reason;
  const std::optional<GpuDevice> device = FindGpuDevice(&reason);
  if (!device) return "no GPU: " + reason;
  if (device->compute_capability != 90) {
    return device->name + " has compute capability " + std::to_string(device->compute_capability) +
           "; decode kernels exist for 90";
  }
  return "";
}

GpuDecodeProblem::GpuDecodeProblem(PagedAttention& problem, const GpuDecodeOptions& options)
    : problem_(problem),
      options_(options),
      stream_(GpuStream::Create().value()),
      q_(BufferFor(problem.memory().q)),
      o_(BufferFor(problem.memory().o)),
      k_(BufferFor(problem.memory().k)),
      v_(BufferFor(problem.memory().v)),
      lse_(BufferFor(problem.memory().lse)),
      table_(BufferFor(problem.memory().block_table)),
      plan_(BufferOf(1)),
      workspace_(BufferOf(1)) {
  const PagedAttention::Memory host = problem.memory();
  params_ = problem.params();
  params_.q = Moved(q_, host.q, params_.q);
  params_.o = Moved(o_, host.o, params_.o);
  params_.k = Moved(k_, host.k, params_.k);
  params_.v = Moved(v_, host.v, params_.v);
  params_.lse = Moved(lse_, host.lse, params_.lse);
  params_.block_table = Moved(table_, host.block_table, params_.block_table);
  params_.cu_seqlens_q = params_.seq_lens = nullptr;
  status_ = PrepareDecode(params_, Device(options), &setup_);
  if (status_ != KernelStatus::kOk) return;
  status_ = MakeDecodeKvMaps(params_, std::max<int64_t>(1, problem.num_blocks()), &maps_);
  if (status_ != KernelStatus::kOk) return;

  const int32_t num_seqs = params_.num_seqs;
  host_plan_.resize(GpuDecodePlanBytes(setup_.num_ctas, num_seqs));
  plan_ = BufferOf(static_cast<int64_t>(host_plan_.size()));
  workspace_ = BufferOf(DecodeWorkspaceBytes(setup_));
  Check(workspace_.Fill(options.workspace_fill, stream_.handle()));
  const std::vector<std::byte> zeros(DecodeZeroedBytes(setup_));
  Check(workspace_.CopyFrom(zeros, stream_.handle()));
  Check(stream_.Synchronize());
  int32_t max_q_len = options.max_q_len;
  if (max_q_len == 0) {
    for (int32_t i = 0; i < num_seqs; ++i) {
      const int32_t* cu = problem.params().cu_seqlens_q;
      max_q_len = std::max(max_q_len, cu[i + 1] - cu[i]);
    }
  }
  launch_ = {plan_.data(), max_q_len, workspace_.data(), workspace_.size_bytes(),
             options.overlap_previous};
  Upload();
}

void GpuDecodeProblem::Check(GpuResult result) { CHECK(result.ok(), "{}", result.text()); }

void GpuDecodeProblem::Upload() {
  const PagedAttention::Memory host = problem_.memory();
  Check(q_.CopyFrom(host.q, stream_.handle()));
  Check(o_.CopyFrom(host.o, stream_.handle()));
  Check(k_.CopyFrom(host.k, stream_.handle()));
  Check(v_.CopyFrom(host.v, stream_.handle()));
  Check(lse_.CopyFrom(std::as_bytes(std::span(host.lse)), stream_.handle()));
  Check(table_.CopyFrom(std::as_bytes(std::span(host.block_table)), stream_.handle()));
  Check(stream_.Synchronize());
}

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
  Check(plan_.CopyFrom(std::span(host_plan_).first(bytes), stream_.handle()));
  Check(stream_.Synchronize());
}

bool GpuDecodeProblem::Download() {
  const PagedAttention::Memory host = problem_.memory();
  const GpuResult result = stream_.Synchronize();
  if (!result.ok()) {
    std::fprintf(stderr, "device error: %s\n", std::string(result.text()).c_str());
    return false;
  }
  Check(o_.CopyTo(host.o, stream_.handle()));
  Check(lse_.CopyTo(std::as_writable_bytes(std::span(host.lse)), stream_.handle()));
  std::vector<std::byte> arrivals(DecodeZeroedBytes(setup_));
  Check(workspace_.CopyTo(arrivals, stream_.handle()));
  Check(stream_.Synchronize());
  if (std::any_of(arrivals.begin(), arrivals.end(), [](std::byte b) { return b != std::byte{}; })) {
    std::fprintf(stderr, "an arrival count was not reset\n");
    return false;
  }
  return problem_.GuardsIntact();
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
