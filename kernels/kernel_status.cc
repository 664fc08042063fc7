// KernelStatus as words for messages at start-up.
#include "kernels/kernel_status.h"

namespace longspan {

std::string_view KernelStatusText(KernelStatus status) {
  switch (status) {
    case KernelStatus::kOk:
      return "ok";
    case KernelStatus::kUnsupportedDType:
      return "unsupported combination of element types";
    case KernelStatus::kUnsupportedHeadDim:
      return "unsupported head_dim";
    case KernelStatus::kUnsupportedHeads:
      return "query heads are not a multiple of KV heads";
    case KernelStatus::kUnsupportedBlockSize:
      return "unsupported block_size";
    case KernelStatus::kUnsupportedOption:
      return "unsupported mask or option";
    case KernelStatus::kBadShape:
      return "bad shape";
    case KernelStatus::kBadStride:
      return "bad stride";
    case KernelStatus::kMisaligned:
      return "misaligned pointer";
    case KernelStatus::kWorkspaceTooSmall:
      return "workspace too small";
    case KernelStatus::kUnsupportedDevice:
      return "unsupported device";
    case KernelStatus::kLaunchFailed:
      return "the device refused the launch";
    case KernelStatus::kUnsupportedScales:
      return "scales of keys and values: missing, unwanted, or with a negative stride";
    case KernelStatus::kUnsupportedTreeMask:
      return "tree_mask: unsupported here, or more than 64 new tokens of a sequence";
  }
  return "unknown";
}

}  // namespace longspan
