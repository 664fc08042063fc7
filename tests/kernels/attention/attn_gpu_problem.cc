// Buffers, calls and checks behind attn_gpu_problem.h.
#include "tests/kernels/attention/attn_gpu_problem.h"

#include <algorithm>
#include <span>

#include "core/check.h"

namespace longspan {
namespace {

constexpr int64_t kGuardBytes = 256;  // behind the workspace
constexpr uint8_t kGuard = 0x5a;
constexpr std::byte kPlanGarbage{0xee};

void Check(GpuResult result) { CHECK(result.ok(), "{}", result.text()); }

DeviceBuffer BufferOf(int64_t bytes) {
  auto buffer = DeviceBuffer::Allocate(bytes);
  CHECK(buffer.has_value(), "no device memory for {} bytes", bytes);
  return std::move(*buffer);
}

// Puts the device's address in place of the host's.
DeviceBuffer FloatsPerHead(int32_t num_heads, const float** values, GpuStream& stream) {
  DeviceBuffer buffer = BufferOf(num_heads * int64_t{sizeof(float)});
  if (*values == nullptr) return buffer;
  const std::span<const float> host(*values, static_cast<size_t>(num_heads));
  Check(buffer.CopyFrom(std::as_bytes(host), stream.handle()));
  Check(stream.Synchronize());
  *values = buffer.as<float>();
  return buffer;
}

longspan_attn_call DeviceCall(PagedAttention& problem, const AttnGpuOptions& options,
                              const GpuAttentionMemory& memory) {
  longspan_attn_call call = AttnCallOf(problem, options.keys);
  const AttentionParams& device = memory.device_params();
  call.q = device.q;
  call.o = device.o;
  call.lse = device.lse;
  call.k = const_cast<void*>(device.k);
  call.v = const_cast<void*>(device.v);
  call.block_table = device.block_table;
  call.k_scale = device.scales.k;
  call.v_scale = device.scales.v;
  call.tree_mask = device.tree_mask;
  call.family = options.family;
  call.line = options.line;
  return call;
}

}  // namespace

longspan_attn_device* AttnTestDevice(std::string* reason) {
  struct Opened {
    longspan_attn_device* device = nullptr;
    int status = longspan_attn_open(&device);
    ~Opened() { longspan_attn_close(device); }
  };
  static Opened opened;
  if (reason != nullptr && opened.device == nullptr) *reason = longspan_attn_text(opened.status);
  return opened.device;
}

AttnGpuProblem::AttnGpuProblem(PagedAttention& problem, const AttnGpuOptions& options)
    : problem_(problem),
      options_(options),
      memory_(problem),
      call_(DeviceCall(problem, options, memory_)),
      sinks_(FloatsPerHead(call_.num_q_heads, &call_.sinks, stream())),
      slopes_(FloatsPerHead(call_.num_q_heads, &call_.alibi_slopes, stream())),
      plan_(BufferOf(1)),
      workspace_(BufferOf(1)) {
  longspan_attn_device* device = AttnTestDevice();
  status_ = longspan_attn_choose(&call_, longspan_attn_compute_capability(device), &choice_);
  reason_ = choice_.reason;
  if (status_ != LONGSPAN_ATTN_OK) return;
  status_ = longspan_attn_measure(device, &call_, &sizes_);
  if (status_ != LONGSPAN_ATTN_OK) {
    reason_ = longspan_attn_text(status_);
    return;
  }
  // A batch without rows has a plan of no bytes.
  host_plan_.resize(static_cast<size_t>(std::max<int64_t>(16, sizes_.plan_bytes)));
  plan_ = BufferOf(static_cast<int64_t>(host_plan_.size()));
  workspace_ = BufferOf(sizes_.workspace_bytes + kGuardBytes);
  std::vector<std::byte> fill(sizes_.workspace_bytes + kGuardBytes,
                              std::byte{options.workspace_fill});
  std::fill_n(fill.begin(), sizes_.zeroed_bytes, std::byte{});
  std::fill_n(fill.begin() + sizes_.workspace_bytes, kGuardBytes, std::byte{kGuard});
  Check(workspace_.CopyFrom(fill, stream().handle()));
  Check(stream().Synchronize());
}

void AttnGpuProblem::Plan() {
  std::fill(host_plan_.begin(), host_plan_.end(), kPlanGarbage);
  const AttnLengths lengths(problem_, options_.keys);
  const int status = longspan_attn_plan(AttnTestDevice(), &call_, &lengths.lengths(),
                                        host_plan_.data(), sizes_.plan_bytes, &info_);
  CHECK(status == LONGSPAN_ATTN_OK, "plan: {}", longspan_attn_text(status));
  Check(plan_.CopyFrom(host_plan_, stream().handle()));
  Check(stream().Synchronize());
}

int AttnGpuProblem::Enqueue() {
  return longspan_attn_run(AttnTestDevice(), &call_, plan_.data(), &info_, workspace_.data(),
                           sizes_.workspace_bytes, stream().handle());
}

void AttnGpuProblem::Reset() {
  problem_.ResetOutput();
  memory_.Upload();
}

std::string AttnGpuProblem::Download() {
  if (!memory_.Download()) return "a device error or a changed guard word (stderr says which)";
  std::vector<std::byte> workspace(static_cast<size_t>(workspace_.size_bytes()));
  Check(workspace_.CopyTo(workspace, stream().handle()));
  Check(stream().Synchronize());
  const auto end = workspace.begin() + sizes_.workspace_bytes;
  if (std::any_of(workspace.begin(), workspace.begin() + sizes_.zeroed_bytes,
                  [](std::byte b) { return b != std::byte{}; })) {
    return "the workspace's first bytes were not left zero";
  }
  if (std::any_of(end, workspace.end(), [](std::byte b) { return b != std::byte{kGuard}; })) {
    return "something was written behind the workspace";
  }
  return "";
}

std::string AttnGpuProblem::Run() {
  if (status_ != LONGSPAN_ATTN_OK) return "set-up: " + reason_;
  Reset();
  Plan();
  const int status = Enqueue();
  if (status != LONGSPAN_ATTN_OK) return std::string("launch: ") + longspan_attn_text(status);
  return Download();
}

}  // namespace longspan
