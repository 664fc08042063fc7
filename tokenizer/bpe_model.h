// Byte-pair encoding of one piece: start from bytes or characters, then merge neighbours, the best
// rank first, until no rule applies. Splitting the text into pieces is pre_tokenizer.h's work.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/ids.h"
#include "core/status.h"
#include "tokenizer/cancel_flag.h"
#include "tokenizer/merge_queue.h"

namespace longspan {

// Two neighbouring ids that become one. The position in the list of rules is the rank.
struct MergeRule {
  TokenId left;
  TokenId right;
  TokenId merged;
};

enum class BpeUnit { kByte, kCharacter };

struct BpeModelConfig {
  BpeUnit unit = BpeUnit::kByte;
  std::array<TokenId, 256> byte_ids;  // kByte: the start; kCharacter: byte fallback
  bool has_byte_fallback = false;     // kCharacter only: byte_ids are set, all of them
  std::unordered_map<char32_t, TokenId> character_ids;  // kCharacter only
  std::unordered_map<std::string, TokenId>
      whole_piece_ids;             // pieces that are taken without merging
  std::optional<TokenId> unknown;  // for a unit without an id; unset: the unit is dropped
  bool fuse_unknown = false;       // a run of unknown units is one token
  std::vector<MergeRule> merges;

  BpeModelConfig() { byte_ids.fill(kInvalidToken); }
};

// Immutable, shared by threads; the scratch belongs to one call.
class BpeModel {
 public:
  struct Symbol {
    int32_t id;  // -1: swallowed by the symbol before
    int32_t previous;
    int32_t next;  // -1 at the end
  };
  struct Scratch {
    std::vector<Symbol> symbols;
    HeapMergeQueue short_queue;
    BucketMergeQueue long_queue;
  };

  BpeModel() = default;
  explicit BpeModel(BpeModelConfig config);

  // Appends the ids of one piece of at most 2^31 - 1 bytes. O(n log n). OUT_OF_RANGE when it has
  // more than max_tokens; a long piece is then given up before it is merged, with memory in
  // proportion to max_tokens only.
  Status Encode(std::string_view piece, int64_t max_tokens, const CancelFlag& cancelled,
                Scratch& scratch, std::vector<TokenId>& ids) const;

 private:
  struct RankEntry {
    uint64_t pair = kNoPair;
    uint32_t rank = 0;
  };
  static constexpr uint64_t kNoPair = ~uint64_t{0};

  std::optional<uint32_t> FindRank(int32_t left, int32_t right) const;
  // The symbols before any merge; stops soon after max_symbols.
  Status Start(std::string_view piece, size_t max_symbols, const CancelFlag& cancelled,
               std::vector<Symbol>& symbols) const;
  // One turn each: appends what the unit at the front of the piece becomes and takes it off.
  void StartWithByte(std::string_view& piece, bool& follows_unknown,
                     std::vector<Symbol>& symbols) const;
  void StartWithCharacter(std::string_view& piece, bool& follows_unknown,
                          std::vector<Symbol>& symbols) const;
  // Queue: one of merge_queue.h, empty.
  template <typename Queue>
  Status MergeAll(const CancelFlag& cancelled, std::vector<Symbol>& symbols, Queue& queue) const;

  BpeModelConfig config_;
  std::vector<RankEntry> rank_entries_;  // open addressing; the size is a power of two
  int64_t max_symbols_per_token_ = 1;    // that merges can make one token of
  size_t longest_whole_piece_ = 0;       // bytes
};

}  // namespace longspan
