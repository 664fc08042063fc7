// The ids that cross folder borders. Each is its own type, so that a block id cannot be passed for
// a token id. They carry no meaning beyond identity; counts and lengths are plain int32_t or
// int64_t.
#pragma once

#include <cstdint>
#include <type_traits>

namespace longspan {

enum class TokenId : int32_t {};    // index into the vocabulary, [0, vocab_size)
enum class BlockId : int32_t {};    // index into the KV pool, [0, num_blocks)
enum class SeqId : int64_t {};      // one per sequence for the life of the process, from 1
enum class StepId : int64_t {};     // one per engine step, from 1
enum class AdapterId : int32_t {};  // 0: the base model; nothing else exists yet

inline constexpr BlockId kInvalidBlock{-1};
inline constexpr TokenId kInvalidToken{-1};

// The number behind an id: ToInt(block) * stride, array indexing, printing.
template <typename Id>
requires std::is_enum_v<Id>
constexpr std::underlying_type_t<Id> ToInt(Id id) {
  return static_cast<std::underlying_type_t<Id>>(id);
}

}  // namespace longspan
