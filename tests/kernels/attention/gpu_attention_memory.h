// The memory of an attention problem of tests/support on a device: the same poison and guard words
// there, and results brought back to where the oracle's comparison looks.
#pragma once

#include <string>

#include "kernels/runtime/buffer.h"
#include "kernels/runtime/stream.h"
#include "tests/support/paged_attention.h"

namespace longspan {

// Why kernels of the sm_90a line cannot run here; empty when they can.
std::string NoHopperDevice();

class GpuAttentionMemory {
 public:
  // Copies the problem to the device. The problem outlives this object.
  explicit GpuAttentionMemory(PagedAttention& problem);

  // The problem's parameters with device pointers; cu_seqlens_q and seq_lens are null.
  const AttentionParams& device_params() const { return params_; }
  GpuStream& stream() { return stream_; }

  // Copies q, k, v and their scales, the block table, the tree mask, o and lse as they are on the
  // host now; waits.
  void Upload();
  // Waits, copies o and lse to the host problem. False, with a message on stderr, on a device error
  // or a changed guard word.
  bool Download();

 private:
  PagedAttention& problem_;
  AttentionParams params_;
  GpuStream stream_;
  DeviceBuffer q_, o_, k_, v_, lse_, table_, k_scales_, v_scales_, tree_mask_;
};

}  // namespace longspan
