// Copies behind gpu_attention_memory.h.
#include "tests/kernels/attention/gpu_attention_memory.h"

#include <cstdio>
#include <span>

#include "core/check.h"
#include "kernels/runtime/device.h"

namespace longspan {
namespace {

template <typename T>
DeviceBuffer BufferFor(const std::vector<T>& host) {
  auto buffer = DeviceBuffer::Allocate(static_cast<int64_t>(host.size() * sizeof(T)));
  CHECK(buffer.has_value(), "no device memory for {} bytes", host.size() * sizeof(T));
  return std::move(*buffer);
}

// The device address of what host points to inside an allocation.
template <typename T, typename P>
P* Moved(const DeviceBuffer& device, const std::vector<T>& host, P* pointer) {
  const auto offset =
      reinterpret_cast<const std::byte*>(pointer) - reinterpret_cast<const std::byte*>(host.data());
  return reinterpret_cast<P*>(device.as<std::byte>() + offset);
}

void Check(GpuResult result) { CHECK(result.ok(), "{}", result.text()); }

}  // namespace

std::string NoHopperDevice() {
  std::string reason;
  const std::optional<GpuDevice> device = FindGpuDevice(&reason);
  if (!device) return "no GPU: " + reason;
  if (device->compute_capability != 90) {
    return device->name + " has compute capability " + std::to_string(device->compute_capability) +
           "; these kernels exist for 90";
  }
  return "";
}

GpuAttentionMemory::GpuAttentionMemory(PagedAttention& problem)
    : problem_(problem),
      params_(problem.params()),
      stream_(GpuStream::Create().value()),
      q_(BufferFor(problem.memory().q)),
      o_(BufferFor(problem.memory().o)),
      k_(BufferFor(problem.memory().k)),
      v_(BufferFor(problem.memory().v)),
      lse_(BufferFor(problem.memory().lse)),
      table_(BufferFor(problem.memory().block_table)),
      k_scales_(BufferFor(problem.memory().k_scales)),
      v_scales_(BufferFor(problem.memory().v_scales)),
      tree_mask_(BufferFor(problem.memory().tree_mask)) {
  const PagedAttention::Memory host = problem.memory();
  params_.q = Moved(q_, host.q, params_.q);
  params_.o = Moved(o_, host.o, params_.o);
  params_.k = Moved(k_, host.k, params_.k);
  params_.v = Moved(v_, host.v, params_.v);
  params_.lse = Moved(lse_, host.lse, params_.lse);
  params_.block_table = Moved(table_, host.block_table, params_.block_table);
  if (params_.scales.k != nullptr) {
    params_.scales.k = Moved(k_scales_, host.k_scales, params_.scales.k);
    params_.scales.v = Moved(v_scales_, host.v_scales, params_.scales.v);
  }
  if (params_.tree_mask != nullptr) {
    params_.tree_mask = Moved(tree_mask_, host.tree_mask, params_.tree_mask);
  }
  params_.cu_seqlens_q = params_.seq_lens = nullptr;
  Upload();
}

void GpuAttentionMemory::Upload() {
  const PagedAttention::Memory host = problem_.memory();
  Check(q_.CopyFrom(host.q, stream_.handle()));
  Check(o_.CopyFrom(host.o, stream_.handle()));
  Check(k_.CopyFrom(host.k, stream_.handle()));
  Check(v_.CopyFrom(host.v, stream_.handle()));
  Check(lse_.CopyFrom(std::as_bytes(std::span(host.lse)), stream_.handle()));
  Check(table_.CopyFrom(std::as_bytes(std::span(host.block_table)), stream_.handle()));
  Check(k_scales_.CopyFrom(std::as_bytes(std::span(host.k_scales)), stream_.handle()));
  Check(v_scales_.CopyFrom(std::as_bytes(std::span(host.v_scales)), stream_.handle()));
  Check(tree_mask_.CopyFrom(std::as_bytes(std::span(host.tree_mask)), stream_.handle()));
  Check(stream_.Synchronize());
}

bool GpuAttentionMemory::Download() {
  const PagedAttention::Memory host = problem_.memory();
  const GpuResult result = stream_.Synchronize();
  if (!result.ok()) {
    std::fprintf(stderr, "device error: %s\n", std::string(result.text()).c_str());
    return false;
  }
  Check(o_.CopyTo(host.o, stream_.handle()));
  Check(lse_.CopyTo(std::as_writable_bytes(std::span(host.lse)), stream_.handle()));
  Check(stream_.Synchronize());
  return problem_.GuardsIntact();
}

}  // namespace longspan
