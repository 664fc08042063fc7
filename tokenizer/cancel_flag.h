// A caller's wish to stop, looked at inside long loops. Not a timer and not a status of its own.
#pragma once

#include <atomic>

#include "core/status.h"

namespace longspan {

// Borrows the flag, which may be null (never cancelled). Used by one thread.
class CancelFlag {
 public:
  explicit CancelFlag(const std::atomic<bool>* flag) : flag_(flag) {}

  bool IsSet() const { return flag_ != nullptr && flag_->load(std::memory_order_relaxed); }

  Status Check() const {
    if (!IsSet()) [[likely]]
      return absl::OkStatus();
    return MakeStatus(absl::StatusCode::kCancelled, "tokenizing was cancelled");
  }

 private:
  const std::atomic<bool>* flag_;
};

}  // namespace longspan
