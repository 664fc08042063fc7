// Where two kernels could serve a call, which one does: numbers measured once per device by
// longspan-tune, kept as a small text file in the cache folder, with built-in defaults. A file that
// is absent, unreadable, damaged or of another device, driver or version changes nothing.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace longspan {

// Of calls up to a head_dim.
struct AttnTuningRow {
  // Packed rows (longest query x group) up to which the decode kernels serve, 1..1024.
  int32_t decode_rows = 64;
  // Longest query up to which prefill on a card of 9.0 takes the sm_80 line, which packs the heads
  // of a group into a tile where the sm_90a kernel has one head a tile. 0: never; at most 1024. For
  // groups of kAttnTunedGroup and more: smaller ones gain less than was measured.
  int32_t sm80_q_len = 0;
  // Decode: no CTA gets less than this cost, GpuDecodePlanParams::min_range_cost, 1..1024.
  int32_t min_range_cost = 4;

  friend bool operator==(const AttnTuningRow&, const AttnTuningRow&) = default;
};

inline constexpr int32_t kAttnTunedGroup = 4;
inline constexpr std::array<int32_t, 3> kAttnTuningHeadDims = {64, 128, 256};

struct AttnTuning {
  std::array<AttnTuningRow, kAttnTuningHeadDims.size()> rows;  // as kAttnTuningHeadDims

  const AttnTuningRow& For(int32_t head_dim) const {
    return rows[head_dim <= kAttnTuningHeadDims[0]   ? 0
                : head_dim <= kAttnTuningHeadDims[1] ? 1
                                                     : 2];
  }
  friend bool operator==(const AttnTuning&, const AttnTuning&) = default;
};

// What a table was measured on.
struct AttnTuningKey {
  std::string device;  // its name
  int32_t driver = 0;  // CUDA version that the driver serves; 13000: 13.0
};

std::string FormatAttnTuning(const AttnTuning& tuning, const AttnTuningKey& key);

// "" and *tuning set, or why the text is no table of this device, and *tuning as it was.
std::string ParseAttnTuning(std::string_view text, const AttnTuningKey& key, AttnTuning* tuning);

// ${XDG_CACHE_HOME:-$HOME/.cache}/longspan/tune/DEVICE.txt; "" without a home.
std::string AttnTuningPath(std::string_view device);

// Takes the table of the file, if there is one. Answers in a line what is used: "table PATH",
// "defaults: no table PATH", "defaults, refused table PATH: REASON".
std::string LoadAttnTuning(const std::string& path, const AttnTuningKey& key, AttnTuning* tuning);

// "", or why the file was not written. Folders are made; readers see the old file or the new one.
std::string SaveAttnTuning(const std::string& path, std::string_view text);

}  // namespace longspan
