// What a launcher answers: kOk, or the reason why nothing was launched. Unsupported shapes are
// found at start-up, so a running server never sees anything but kOk.
#pragma once

#include <cstdint>
#include <string_view>

namespace longspan {

enum class [[nodiscard]] KernelStatus : uint8_t {
  kOk,
  kUnsupportedDType,
  kUnsupportedHeadDim,
  kUnsupportedHeads,      // query heads not a multiple of KV heads
  kUnsupportedBlockSize,
  kUnsupportedOption,     // a mask or option this kernel does not implement
  kBadShape,              // negative extent, length beyond the block table, and the like
  kBadStride,
  kMisaligned,
  kWorkspaceTooSmall,
  kUnsupportedDevice,
  kLaunchFailed,  // the device's runtime refused: the device is lost or out of resources
  kUnsupportedScales,    // null with 8-bit keys and values, given with others, or a negative stride
  kUnsupportedTreeMask,  // not with this kernel, or more tokens than a row's word has bits
};

std::string_view KernelStatusText(KernelStatus status);

}  // namespace longspan
