// Arithmetic on sizes that come from files or the wire: nullopt instead of overflow.
#pragma once

#include <concepts>
#include <optional>

namespace longspan {

template <std::integral T>
constexpr std::optional<T> CheckedMul(T a, T b) {
  T out;
  if (__builtin_mul_overflow(a, b, &out)) return std::nullopt;
  return out;
}

// ceil(a / b) for a >= 0, b > 0, without overflow near the top of T.
template <std::integral T>
constexpr T CeilDiv(T a, T b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

}  // namespace longspan
