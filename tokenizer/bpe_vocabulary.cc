// Looks each merge's two texts and their sum up in the vocabulary; a merge that names an unknown
// token is an error. Pieces that are tokens as a whole go into a map of their own.
#include "tokenizer/bpe_vocabulary.h"

#include <optional>
#include <string>
#include <unordered_map>

#include "core/log.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/utf8.h"

namespace longspan {
namespace {

void AddSymbol(const VocabularyEntry& entry, BpeModelConfig& config) {
  if (config.unit == BpeUnit::kByte) {
    const std::optional<std::string> bytes = DecodeByteLevel(entry.text);
    if (bytes && bytes->size() == 1) config.byte_ids[static_cast<uint8_t>((*bytes)[0])] = entry.id;
    return;
  }
  if (entry.text.empty()) return;
  const Utf8Character character = DecodeUtf8(entry.text);
  if (character.num_bytes == entry.text.size()) config.character_ids[character.code] = entry.id;
}

void AddWholePiece(const VocabularyEntry& entry, BpeModelConfig& config) {
  const std::optional<std::string> piece = config.unit == BpeUnit::kByte
                                               ? DecodeByteLevel(entry.text)
                                               : std::optional<std::string>(entry.text);
  if (piece && !piece->empty()) config.whole_piece_ids[*piece] = entry.id;
}

}  // namespace

StatusOr<MergeText> ParseMergeText(std::string_view line) {
  const size_t space = line.find(' ');
  const bool is_pair = space != std::string_view::npos && space > 0 && space + 1 < line.size() &&
                       line.find(' ', space + 1) == std::string_view::npos;
  if (!is_pair) return InvalidArgument("merge \"{}\" is not \"left right\"", Escaped(line));
  return MergeText{line.substr(0, space), line.substr(space + 1)};
}

StatusOr<BpeModelConfig> BuildBpeModelConfig(BpeUnit unit, std::span<const VocabularyEntry> entries,
                                             std::span<const MergeText> merges,
                                             bool takes_whole_pieces) {
  BpeModelConfig config;
  config.unit = unit;
  std::unordered_map<std::string_view, TokenId> ids;
  ids.reserve(entries.size());
  for (const VocabularyEntry& entry : entries) {
    ids.emplace(entry.text, entry.id);
    AddSymbol(entry, config);
    if (takes_whole_pieces) AddWholePiece(entry, config);
  }
  config.merges.reserve(merges.size());
  for (const MergeText& merge : merges) {
    const std::string merged = std::string(merge.left).append(merge.right);
    TokenId found[3];
    const std::string_view texts[3] = {merge.left, merge.right, merged};
    for (int i = 0; i < 3; ++i) {
      const auto at = ids.find(texts[i]);
      if (at == ids.end()) {
        return InvalidArgument("merge \"{} {}\": token \"{}\" is not in the vocabulary",
                               Escaped(merge.left), Escaped(merge.right), Escaped(texts[i]));
      }
      found[i] = at->second;
    }
    config.merges.push_back({found[0], found[1], found[2]});
  }
  return config;
}

}  // namespace longspan
