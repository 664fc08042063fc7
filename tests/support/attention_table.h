// The table of attention problems that every attention kernel is held against the oracle with, on
// the CPU and on GPUs: every pair of values of two options that the CPU serves is in some row that
// it serves, and again so for GPUs, and for their fastest kernels. A pure function.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/paged_attention.h"

namespace longspan {

// Who serves a value, or a row: bits.
enum AttentionServer : uint8_t {
  kOnSm90 = 1,  // some kernel made for one card
  kOnGpu = 2,   // the kernels of the whole contract (attention.md)
  kOnCpu = 4,
};

// How keys lie; on the CPU all of them are blocks with a table.
enum class AttentionTableKeys : uint8_t {
  kBlocks,
  kOnePiece,  // sequences one behind the other, each from a block's first token
  kRows,      // a row of the same capacity for every sequence
};

enum class AttentionTableFamily : uint8_t { kByShape, kDecode, kPrefill };

struct AttentionTableRow {
  std::string name;  // says all values; letters, digits and underscores
  AttentionCase spec;
  AttentionTableKeys keys = AttentionTableKeys::kBlocks;
  AttentionTableFamily family = AttentionTableFamily::kByShape;  // of GPU kernels
  int32_t num_ctas = 1;         // a small grid for decode on GPUs, so that short problems are cut
  std::vector<int32_t> values;  // by option: the index of its value
  uint8_t servers = kOnSm90 | kOnGpu | kOnCpu;
};

struct AttentionOption {
  std::string name;
  std::vector<uint8_t> servers;  // one entry a value
};
std::vector<AttentionOption> AttentionTableOptions();

// At least this many rows are served by GPUs.
inline constexpr int32_t kAttentionTableGpuRows = 640;

// The same rows every time.
std::vector<AttentionTableRow> MakeAttentionTable();

}  // namespace longspan
