// Errors that reach a user: absl::Status with gRPC's codes, made by format strings. Ordinary
// shortage (no free block, budget used up) is a value, not a Status.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace longspan {

using Status = absl::Status;
template <typename T>
using StatusOr = absl::StatusOr<T>;

// MakeStatus(code, "field: problem (limit {})", limit). The message is shown to users as it is.
template <typename... Args>
Status MakeStatus(absl::StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Status(code, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
Status InvalidArgument(fmt::format_string<Args...> format, Args&&... args) {
  return MakeStatus(absl::StatusCode::kInvalidArgument, format, std::forward<Args>(args)...);
}

// The message as std::string (absl's own string_view type stays out of our headers).
inline std::string StatusMessage(const Status& status) {
  return std::string(status.message().data(), status.message().size());
}

#define LONGSPAN_CONCAT_INNER(a, b) a##b
#define LONGSPAN_CONCAT(a, b) LONGSPAN_CONCAT_INNER(a, b)
#define RETURN_IF_ERROR(expr)                                               \
  do {                                                                      \
    if (::longspan::Status status_ = (expr); !status_.ok()) return status_; \
  } while (false)
#define ASSIGN_OR_RETURN(lhs, expr) \
  ASSIGN_OR_RETURN_INNER(LONGSPAN_CONCAT(status_or_, __LINE__), lhs, expr)
#define ASSIGN_OR_RETURN_INNER(tmp, lhs, expr)   \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return std::move(tmp).status(); \
  lhs = *std::move(tmp)

}  // namespace longspan
