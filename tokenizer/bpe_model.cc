// Symbols of a piece form a linked list; a queue (merge_queue.h) says which pair to merge next, and
// a popped pair counts only if it still merges to the same id. A piece that cannot end below
// max_tokens is given up before it is merged.
#include "tokenizer/bpe_model.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "core/checked_math.h"
#include "tokenizer/utf8.h"

namespace longspan {
namespace {

constexpr uint32_t kStepsPerCancelCheck = 4096;
constexpr size_t kMaxSymbolsOfShortPiece = 1024;
constexpr int64_t kMaxSymbols = std::numeric_limits<int32_t>::max();  // of a piece

uint64_t PairKey(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

uint64_t Mix(uint64_t key) {
  key *= 0x9E3779B97F4A7C15u;
  return key ^ (key >> 32);
}

void Push(int32_t id, std::vector<BpeModel::Symbol>& symbols) {
  const int32_t position = static_cast<int32_t>(symbols.size());
  if (position > 0) symbols.back().next = position;
  symbols.push_back({id, position - 1, -1});
}

Status TooManyTokens() { return Status(absl::StatusCode::kOutOfRange, "too many tokens"); }

// How many symbols the merges can make one token of; the largest int64 when rules feed each other
// in a circle.
int64_t MaxSymbolsPerToken(const std::vector<MergeRule>& merges) {
  constexpr int kMaxPasses = 64;  // one is enough for rules that come after those they build on
  std::unordered_map<TokenId, int64_t> num_symbols;
  const auto of = [&](TokenId id) {
    const auto known = num_symbols.find(id);
    return known == num_symbols.end() ? 1 : known->second;
  };
  int64_t most = 1;
  for (int pass = 0; pass < kMaxPasses; ++pass) {
    bool changed = false;
    for (const MergeRule& rule : merges) {
      const int64_t sum = std::min<int64_t>(of(rule.left) + of(rule.right), kMaxSymbols);
      if (sum <= of(rule.merged)) continue;
      num_symbols[rule.merged] = sum;
      most = std::max(most, sum);
      changed = true;
    }
    if (!changed) return most;
  }
  return std::numeric_limits<int64_t>::max();
}

}  // namespace

BpeModel::BpeModel(BpeModelConfig config)
    : config_(std::move(config)), max_symbols_per_token_(MaxSymbolsPerToken(config_.merges)) {
  for (const auto& [piece, id] : config_.whole_piece_ids) {
    longest_whole_piece_ = std::max(longest_whole_piece_, piece.size());
  }
  rank_entries_.resize(std::bit_ceil(config_.merges.size() * 2 + 1));
  const uint64_t mask = rank_entries_.size() - 1;
  for (size_t rank = 0; rank < config_.merges.size(); ++rank) {
    const MergeRule& rule = config_.merges[rank];
    const uint64_t pair = PairKey(ToInt(rule.left), ToInt(rule.right));
    uint64_t at = Mix(pair) & mask;
    while (rank_entries_[at].pair != kNoPair && rank_entries_[at].pair != pair)
      at = (at + 1) & mask;
    rank_entries_[at] = {pair, static_cast<uint32_t>(rank)};
  }
}

std::optional<uint32_t> BpeModel::FindRank(int32_t left, int32_t right) const {
  const uint64_t pair = PairKey(left, right);
  const uint64_t mask = rank_entries_.size() - 1;
  for (uint64_t at = Mix(pair) & mask; rank_entries_[at].pair != kNoPair; at = (at + 1) & mask) {
    if (rank_entries_[at].pair == pair) return rank_entries_[at].rank;
  }
  return std::nullopt;
}

Status BpeModel::Start(std::string_view piece, size_t max_symbols, const CancelFlag& cancelled,
                       std::vector<Symbol>& symbols) const {
  bool follows_unknown = false;
  for (uint32_t num_units = 0; !piece.empty(); ++num_units) {
    if (num_units % kStepsPerCancelCheck == 0) RETURN_IF_ERROR(cancelled.Check());
    if (symbols.size() > max_symbols) break;
    if (config_.unit == BpeUnit::kCharacter) {
      StartWithCharacter(piece, follows_unknown, symbols);
    } else {
      StartWithByte(piece, follows_unknown, symbols);
    }
  }
  return absl::OkStatus();
}

void BpeModel::StartWithByte(std::string_view& piece, bool& follows_unknown,
                             std::vector<Symbol>& symbols) const {
  const TokenId id = config_.byte_ids[static_cast<uint8_t>(piece.front())];
  piece.remove_prefix(1);
  if (id != kInvalidToken) {
    Push(ToInt(id), symbols);
  } else if (config_.unknown && !(config_.fuse_unknown && follows_unknown)) {
    Push(ToInt(*config_.unknown), symbols);
  }
  follows_unknown = id == kInvalidToken;
}

void BpeModel::StartWithCharacter(std::string_view& piece, bool& follows_unknown,
                                  std::vector<Symbol>& symbols) const {
  const Utf8Character character = DecodeUtf8(piece);
  const std::string_view bytes = piece.substr(0, character.num_bytes);
  piece.remove_prefix(character.num_bytes);
  if (character.state == Utf8State::kValid) {
    const auto known = config_.character_ids.find(character.code);
    if (known != config_.character_ids.end()) {
      Push(ToInt(known->second), symbols);
      follows_unknown = false;
      return;
    }
  }
  if (config_.has_byte_fallback) {
    for (char byte : bytes) Push(ToInt(config_.byte_ids[static_cast<uint8_t>(byte)]), symbols);
    return;
  }
  if (config_.unknown && !(config_.fuse_unknown && follows_unknown)) {
    Push(ToInt(*config_.unknown), symbols);
  }
  follows_unknown = true;
}

template <typename Queue>
Status BpeModel::MergeAll(const CancelFlag& cancelled, std::vector<Symbol>& symbols,
                          Queue& queue) const {
  const auto rank_at = [&](int32_t left) {
    return FindRank(symbols[left].id, symbols[symbols[left].next].id);
  };
  const auto push = [&](int32_t left) {
    if (const std::optional<uint32_t> rank = rank_at(left)) queue.Push({*rank, left});
  };
  for (size_t left = 0; left + 1 < symbols.size(); ++left) {
    if (left % kStepsPerCancelCheck == 0) RETURN_IF_ERROR(cancelled.Check());
    push(static_cast<int32_t>(left));
  }

  for (uint32_t num_steps = 0;; ++num_steps) {
    if (num_steps % kStepsPerCancelCheck == 0) RETURN_IF_ERROR(cancelled.Check());
    const std::optional<MergeCandidate> best = queue.Pop();
    if (!best) return absl::OkStatus();
    Symbol& left = symbols[best->position];
    if (left.id < 0 || left.next < 0) continue;
    // A candidate is stale when its neighbours have changed. What counts is what the pair merges
    // to, not its rank: a pair that changed but still merges to the same id keeps the old, better
    // rank.
    const std::optional<uint32_t> current = rank_at(best->position);
    const TokenId merged = config_.merges[best->rank].merged;
    if (!current || config_.merges[*current].merged != merged) continue;

    Symbol& right = symbols[left.next];
    left.id = ToInt(merged);
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[left.next].previous = best->position;
    if (left.previous >= 0) push(left.previous);
    if (left.next >= 0) push(best->position);
  }
}

Status BpeModel::Encode(std::string_view piece, int64_t max_tokens, const CancelFlag& cancelled,
                        Scratch& scratch, std::vector<TokenId>& ids) const {
  if (piece.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return InvalidArgument("text: {} bytes (limit {})", piece.size(),
                           std::numeric_limits<int32_t>::max());
  }
  max_tokens = std::max<int64_t>(max_tokens, 0);
  if (!config_.whole_piece_ids.empty() && piece.size() <= longest_whole_piece_) {
    const auto whole = config_.whole_piece_ids.find(std::string(piece));
    if (whole != config_.whole_piece_ids.end()) {
      if (max_tokens == 0) return TooManyTokens();
      ids.push_back(whole->second);
      return absl::OkStatus();
    }
  }
  const int64_t max_symbols =
      CheckedMul(max_tokens, max_symbols_per_token_).value_or(std::numeric_limits<int64_t>::max());
  scratch.symbols.clear();
  RETURN_IF_ERROR(Start(piece, static_cast<size_t>(max_symbols), cancelled, scratch.symbols));
  if (static_cast<int64_t>(scratch.symbols.size()) > max_symbols) return TooManyTokens();
  if (scratch.symbols.size() <= kMaxSymbolsOfShortPiece) {
    scratch.short_queue.Clear();
    RETURN_IF_ERROR(MergeAll(cancelled, scratch.symbols, scratch.short_queue));
  } else {
    scratch.long_queue.Clear(config_.merges.size());
    RETURN_IF_ERROR(MergeAll(cancelled, scratch.symbols, scratch.long_queue));
  }
  for (const Symbol& symbol : scratch.symbols) {
    if (symbol.id < 0) continue;
    if (max_tokens-- == 0) return TooManyTokens();
    ids.push_back(TokenId{symbol.id});
  }
  return absl::OkStatus();
}

}  // namespace longspan
