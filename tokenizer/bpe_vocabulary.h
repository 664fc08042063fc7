// From the texts of a vocabulary file to the numbers of a BPE model: resolves merges, single
// symbols and whole pieces to ids. Shared by the loaders.
#pragma once

#include <span>
#include <string_view>

#include "core/ids.h"
#include "core/status.h"
#include "tokenizer/bpe_model.h"

namespace longspan {

struct VocabularyEntry {
  std::string_view text;  // as the file writes it; byte-level vocabularies in GPT-2's alphabet
  TokenId id;
};
struct MergeText {
  std::string_view left;
  std::string_view right;
};

// "left right" with exactly one space.
StatusOr<MergeText> ParseMergeText(std::string_view line);

// Texts are unique. The status names the first merge that speaks of a token that does not exist. A
// pair that is listed twice has its last rank. Unknown token and byte fallback are left to the
// caller.
StatusOr<BpeModelConfig> BuildBpeModelConfig(BpeUnit unit, std::span<const VocabularyEntry> entries,
                                             std::span<const MergeText> merges,
                                             bool takes_whole_pieces);

}  // namespace longspan
