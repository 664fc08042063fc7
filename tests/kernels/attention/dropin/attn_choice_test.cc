// Which family, line and view of the keys serve a call; and that a view finds every token where the
// strides say it lies. No GPU: the functions are pure.
#include "kernels/attention/dropin/attn_choice.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

extern "C" int longspan_attn_header_is_c99(void);

namespace longspan {
namespace {

// 32 query heads on 8, head_dim 128, 4 rows of 4096 tokens, contiguous.
longspan_attn_call RowsCall() {
  longspan_attn_call call = {};
  call.struct_bytes = sizeof(call);
  call.dtype = LONGSPAN_ATTN_BFLOAT16;
  call.num_seqs = 4;
  call.num_q_heads = 32;
  call.num_kv_heads = 8;
  call.head_dim = 128;
  call.max_q_len = 1;
  call.kv_layout = LONGSPAN_ATTN_ROWS;
  call.causal = 1;
  call.window_left = call.window_right = -1;
  call.scale = 0.0883883f;
  call.total_q = 4;
  call.num_blocks = 4;
  call.kv_capacity = 4096;
  call.q_head_stride = call.o_head_stride = call.k_head_stride = call.v_head_stride = 128;
  call.q_token_stride = call.o_token_stride = 32 * 128;
  call.k_token_stride = call.v_token_stride = 8 * 128;
  call.k_block_stride = call.v_block_stride = 4096 * 8 * 128;
  return call;
}

longspan_attn_call PagedCall(int32_t block_size) {
  longspan_attn_call call = RowsCall();
  call.kv_layout = LONGSPAN_ATTN_PAGED;
  call.num_blocks = 100;
  call.block_size = block_size;
  call.kv_capacity = 0;
  call.block_table_stride = 20;
  call.k_block_stride = call.v_block_stride = int64_t{block_size} * 8 * 128;
  return call;
}

void SetRowCapacity(longspan_attn_call* call, int64_t tokens) {
  call->kv_capacity = tokens;
  call->k_block_stride = call->v_block_stride = tokens * call->k_token_stride;
}

struct Row {
  const char* what;
  longspan_attn_call call;
  int32_t compute_capability;
  AttnFamily family;
  int32_t line;
  AttnKeys keys;
};

template <typename Change>
longspan_attn_call With(longspan_attn_call call, Change change) {
  change(call);
  return call;
}

TEST(AttnChoice, FollowsTheTable) {
  using Call = longspan_attn_call;
  const float slope = 0.0f;
  const uint64_t word = 1;
  const AttnFamily decode = AttnFamily::kDecode, prefill = AttnFamily::kPrefill;
  const Row rows[] = {
      {"decode, blocks", PagedCall(64), 90, decode, 90, AttnKeys::kBlocks},
      {"on an A100", PagedCall(64), 80, decode, 80, AttnKeys::kBlocks},
      {"newer than 9.0", PagedCall(64), 100, decode, 80, AttnKeys::kBlocks},
      {"64 packed rows", With(PagedCall(64), [](Call& c) { c.max_q_len = 16; }), 90, decode, 90,
       AttnKeys::kBlocks},
      {"68 packed rows", With(PagedCall(64), [](Call& c) { c.max_q_len = 17; }), 90, prefill, 90,
       AttnKeys::kBlocks},
      {"head_dim 192, decode", With(PagedCall(64), [](Call& c) { c.head_dim = 192; }), 90, decode,
       90, AttnKeys::kBlocks},
      {"head_dim 192, prefill",
       With(PagedCall(64), [](Call& c) { c.head_dim = 192, c.max_q_len = 100; }), 90, prefill, 80,
       AttnKeys::kBlocks},
      {"head_dim 256, decode", With(PagedCall(64), [](Call& c) { c.head_dim = 256; }), 90, decode,
       80, AttnKeys::kBlocks},
      {"head_dim 256, prefill",
       With(PagedCall(64), [](Call& c) { c.head_dim = 256, c.max_q_len = 100; }), 90, prefill, 90,
       AttnKeys::kBlocks},
      {"head_dim 80", With(PagedCall(64), [](Call& c) { c.head_dim = 80; }), 90, decode, 80,
       AttnKeys::kBlocks},
      {"softcap", With(PagedCall(64), [](Call& c) { c.softcap = 30.0f; }), 90, decode, 80,
       AttnKeys::kBlocks},
      {"ALiBi", With(PagedCall(64), [&](Call& c) { c.alibi_slopes = &slope; }), 90, decode, 80,
       AttnKeys::kBlocks},
      {"sinks", With(PagedCall(64), [&](Call& c) { c.sinks = &slope; }), 90, decode, 80,
       AttnKeys::kBlocks},
      {"window left", With(PagedCall(64), [](Call& c) { c.window_left = 100; }), 90, decode, 90,
       AttnKeys::kBlocks},
      {"a right window beyond causal", With(PagedCall(64), [](Call& c) { c.window_right = 9; }), 90,
       decode, 90, AttnKeys::kBlocks},
      {"a right window of 0 is causal",
       With(PagedCall(64), [](Call& c) { c.causal = 0, c.window_right = 0; }), 90, decode, 90,
       AttnKeys::kBlocks},
      {"a right window", With(PagedCall(64), [](Call& c) { c.causal = 0, c.window_right = 9; }), 90,
       decode, 80, AttnKeys::kBlocks},
      {"negative scale, decode", With(PagedCall(64), [](Call& c) { c.scale = -1.0f; }), 90, decode,
       90, AttnKeys::kBlocks},
      {"negative scale, prefill",
       With(PagedCall(64), [](Call& c) { c.scale = -1.0f, c.max_q_len = 100; }), 90, prefill, 80,
       AttnKeys::kBlocks},
      {"e4m3 keys, decode",
       With(PagedCall(64), [](Call& c) { c.kv_dtype = LONGSPAN_ATTN_FLOAT8_E4M3; }), 90, decode, 90,
       AttnKeys::kBlocks},
      {"e4m3 keys, decode, head_dim 256",
       With(PagedCall(64),
            [](Call& c) { c.kv_dtype = LONGSPAN_ATTN_FLOAT8_E4M3, c.head_dim = 256; }),
       90, decode, 90, AttnKeys::kBlocks},
      {"e4m3 keys, decode, head_dim 96",
       With(PagedCall(64),
            [](Call& c) { c.kv_dtype = LONGSPAN_ATTN_FLOAT8_E4M3, c.head_dim = 96; }),
       90, decode, 90, AttnKeys::kBlocks},
      {"e4m3 keys, decode, head_dim 160",
       With(PagedCall(64),
            [](Call& c) { c.kv_dtype = LONGSPAN_ATTN_FLOAT8_E4M3, c.head_dim = 160; }),
       90, decode, 80, AttnKeys::kBlocks},
      {"int8 keys, decode, strides of 8 bytes",
       With(PagedCall(64), [](Call& c) { c.kv_dtype = LONGSPAN_ATTN_INT8, c.k_token_stride += 8; }),
       90, decode, 80, AttnKeys::kBlocks},
      {"int8 rows, decode", With(RowsCall(), [](Call& c) { c.kv_dtype = LONGSPAN_ATTN_INT8; }), 90,
       decode, 90, AttnKeys::kRowBlocks},
      {"int8 keys, decode, the sm_80 line asked for",
       With(PagedCall(64),
            [](Call& c) { c.kv_dtype = LONGSPAN_ATTN_INT8, c.line = LONGSPAN_ATTN_SM80; }),
       90, decode, 80, AttnKeys::kBlocks},
      {"int8 keys, prefill",
       With(RowsCall(), [](Call& c) { c.kv_dtype = LONGSPAN_ATTN_INT8, c.max_q_len = 100; }), 90,
       prefill, 80, AttnKeys::kUnitBlocks},
      {"a tree is decode whatever the rows",
       With(PagedCall(64), [&](Call& c) { c.tree_mask = &word, c.max_q_len = 64; }), 90, decode, 80,
       AttnKeys::kBlocks},
      {"rows of whole blocks", RowsCall(), 90, decode, 90, AttnKeys::kRowBlocks},
      {"rows of 4095 tokens", With(RowsCall(), [](Call& c) { SetRowCapacity(&c, 4095); }), 90,
       decode, 80, AttnKeys::kUnitBlocks},
      {"rows, any start", With(RowsCall(), [](Call& c) { c.kv_layout = LONGSPAN_ATTN_PACKED; }), 90,
       decode, 80, AttnKeys::kUnitBlocks},
      {"rows, prefill", With(RowsCall(), [](Call& c) { c.max_q_len = 100; }), 90, prefill, 90,
       AttnKeys::kOnePiece},
      {"packed, prefill",
       With(RowsCall(), [](Call& c) { c.max_q_len = 100, c.kv_layout = LONGSPAN_ATTN_PACKED; }), 90,
       prefill, 90, AttnKeys::kOnePiece},
      {"rows no whole number of tokens apart",
       With(RowsCall(),
            [](Call& c) { c.max_q_len = 100, c.k_block_stride = c.v_block_stride += 8; }),
       90, prefill, 80, AttnKeys::kUnitBlocks},
      {"the family asked for", With(RowsCall(), [](Call& c) { c.family = LONGSPAN_ATTN_PREFILL; }),
       90, prefill, 90, AttnKeys::kOnePiece},
      {"the line asked for", With(RowsCall(), [](Call& c) { c.line = LONGSPAN_ATTN_SM80; }), 90,
       decode, 80, AttnKeys::kUnitBlocks},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.what);
    AttnChoice choice;
    EXPECT_EQ(ChooseAttn(row.call, row.compute_capability, &choice), LONGSPAN_ATTN_OK);
    EXPECT_EQ(std::string(choice.reason), "");
    EXPECT_EQ(choice.family, row.family);
    EXPECT_EQ(choice.line, row.line);
    EXPECT_EQ(choice.keys, row.keys);
  }
}

TEST(AttnChoice, PassesScalesAndTreeOn) {
  const uint64_t word = 1;
  const float scale = 2.0f;
  longspan_attn_call call = PagedCall(64);
  call.kv_dtype = LONGSPAN_ATTN_INT8;
  call.k_scale = call.v_scale = &scale;
  call.k_scale_block_stride = 3;
  call.v_scale_head_stride = 5;
  call.tree_mask = &word;
  call.tree_mask_stride = 7;
  call.causal = 1;
  call.window_right = 0;  // beside a tree it is not causal, but a window
  AttnChoice choice;
  ASSERT_EQ(ChooseAttn(call, 80, &choice), LONGSPAN_ATTN_OK);
  const AttentionParams params = AttnParams(call, choice);
  EXPECT_EQ(params.q_dtype, DType::kBFloat16);
  EXPECT_EQ(params.kv_dtype, DType::kInt8);
  EXPECT_EQ(params.scales.v, &scale);
  EXPECT_EQ(params.scales.k_block_stride, 3);
  EXPECT_EQ(params.scales.v_head_stride, 5);
  EXPECT_EQ(params.tree_mask, &word);
  EXPECT_EQ(params.tree_mask_stride, 7);
  EXPECT_FALSE(params.causal);
  EXPECT_EQ(params.window_right, 0);
}

AttnTuning TuningOf(const AttnTuningRow& row) {
  AttnTuning tuning;
  tuning.rows.fill(row);
  return tuning;
}

TEST(AttnChoice, ATunedTableMovesTheBorders) {
  const auto chosen = [](int32_t q_len, int32_t compute_capability, const AttnTuningRow& row,
                         int32_t family = 0) {
    longspan_attn_call call = PagedCall(64);
    call.max_q_len = q_len;
    call.family = family;
    AttnChoice choice;
    EXPECT_EQ(ChooseAttn(call, compute_capability, &choice, TuningOf(row)), LONGSPAN_ATTN_OK);
    return std::pair(choice.family, choice.line);
  };
  const std::pair decode90 = {AttnFamily::kDecode, 90}, prefill90 = {AttnFamily::kPrefill, 90},
                  decode80 = {AttnFamily::kDecode, 80}, prefill80 = {AttnFamily::kPrefill, 80};
  EXPECT_EQ(chosen(8, 90, {.decode_rows = 32}), decode90);
  EXPECT_EQ(chosen(9, 90, {.decode_rows = 32}), prefill90);
  EXPECT_EQ(chosen(9, 90, {.decode_rows = 32, .sm80_q_len = 9}), prefill80);
  EXPECT_EQ(chosen(10, 90, {.decode_rows = 32, .sm80_q_len = 9}), prefill90);
  EXPECT_EQ(chosen(8, 90, {.decode_rows = 32, .sm80_q_len = 9}), decode90);
  EXPECT_EQ(chosen(8, 80, {.decode_rows = 32, .sm80_q_len = 9}), decode80);
  EXPECT_EQ(chosen(100, 80, {.decode_rows = 32}), prefill80);
  EXPECT_EQ(chosen(100, 90, {.decode_rows = 32, .sm80_q_len = 200}, LONGSPAN_ATTN_DECODE), decode90)
      << "the family asked for";
}

TEST(AttnChoice, ATunedTableSpeaksOfGroupsAsLargeAsMeasured) {
  longspan_attn_call call = PagedCall(64);
  call.max_q_len = 100;
  AttnChoice choice;
  const AttnTuning tuning = TuningOf({.sm80_q_len = 200});
  for (const auto& [num_q_heads, line] : {std::pair{8, 90}, {24, 90}, {32, 80}, {64, 80}}) {
    call.num_q_heads = num_q_heads;
    EXPECT_EQ(ChooseAttn(call, 90, &choice, tuning), LONGSPAN_ATTN_OK);
    EXPECT_EQ(choice.line, line) << num_q_heads;
  }
}

// Only the decode kernel, which counts rows in blocks, can see so many tokens.
TEST(AttnChoice, WhatTheDefaultsServeIsServedWhateverTheTuning) {
  longspan_attn_call call = RowsCall();
  call.max_q_len = 8;
  SetRowCapacity(&call, 1 << 20);
  call.num_blocks = 4096;
  AttnChoice choice;
  for (const AttnTuningRow& row : {AttnTuningRow(), {.decode_rows = 1}, {.sm80_q_len = 1024}}) {
    EXPECT_EQ(ChooseAttn(call, 90, &choice, TuningOf(row)), LONGSPAN_ATTN_OK);
    EXPECT_EQ(choice.keys, AttnKeys::kRowBlocks);
  }
  call.family = LONGSPAN_ATTN_PREFILL;
  EXPECT_EQ(ChooseAttn(call, 90, &choice), LONGSPAN_ATTN_SHAPE);
}

TEST(AttnChoice, RefusesWithAReason) {
  using Call = longspan_attn_call;
  const uint64_t word = 1;
  const float infinity = std::numeric_limits<float>::infinity();
  const struct {
    longspan_attn_call call;
    int32_t compute_capability;
    int status;
  } rows[] = {
      {PagedCall(64), 75, LONGSPAN_ATTN_DEVICE},
      {PagedCall(24), 90, LONGSPAN_ATTN_BLOCK_SIZE},
      {PagedCall(512), 90, LONGSPAN_ATTN_BLOCK_SIZE},
      {With(RowsCall(), [](Call& c) { c.struct_bytes -= 8; }), 90, LONGSPAN_ATTN_STRUCT},
      {With(RowsCall(), [](Call& c) { c.dtype = 3; }), 90, LONGSPAN_ATTN_DTYPE},
      {With(RowsCall(), [](Call& c) { c.num_q_heads = 9; }), 90, LONGSPAN_ATTN_HEADS},
      {With(RowsCall(), [](Call& c) { c.num_kv_heads = 0; }), 90, LONGSPAN_ATTN_HEADS},
      {With(RowsCall(), [](Call& c) { c.head_dim = 264; }), 90, LONGSPAN_ATTN_HEAD_DIM},
      {With(RowsCall(), [](Call& c) { c.head_dim = 20; }), 90, LONGSPAN_ATTN_HEAD_DIM},
      {With(RowsCall(), [](Call& c) { c.k_token_stride += 4; }), 90, LONGSPAN_ATTN_STRIDE},
      {With(RowsCall(), [](Call& c) { c.q_head_stride = -8; }), 90, LONGSPAN_ATTN_STRIDE},
      {With(RowsCall(), [](Call& c) { c.v_token_stride *= 2; }), 80, LONGSPAN_ATTN_STRIDE},
      {With(RowsCall(), [&](Call& c) { c.scale = infinity; }), 90, LONGSPAN_ATTN_OPTION},
      {With(RowsCall(), [](Call& c) { c.softcap = -1.0f; }), 90, LONGSPAN_ATTN_OPTION},
      {With(RowsCall(), [](Call& c) { c.window_left = -2; }), 90, LONGSPAN_ATTN_OPTION},
      {With(RowsCall(), [](Call& c) { c.kv_layout = 7; }), 90, LONGSPAN_ATTN_OPTION},
      {With(RowsCall(), [](Call& c) { c.line = 90; }), 90, LONGSPAN_ATTN_OPTION},
      {With(RowsCall(), [](Call& c) { c.num_blocks = 0; }), 90, LONGSPAN_ATTN_SHAPE},
      {With(RowsCall(), [](Call& c) { c.kv_capacity = 0; }), 90, LONGSPAN_ATTN_SHAPE},
      {With(RowsCall(), [](Call& c) { c.total_q = -1; }), 90, LONGSPAN_ATTN_SHAPE},
      {With(RowsCall(), [](Call& c) { c.kv_dtype = 5; }), 90, LONGSPAN_ATTN_DTYPE},
      {With(RowsCall(), [](Call& c) { c.kv_dtype = LONGSPAN_ATTN_FLOAT16; }), 90,
       LONGSPAN_ATTN_DTYPE},
      {With(RowsCall(), [](Call& c) { c.v_scale_head_stride = -1; }), 90, LONGSPAN_ATTN_SCALES},
      {With(RowsCall(), [](Call& c) { c.k_scale_block_stride = 8; }), 90, LONGSPAN_ATTN_SCALES},
      {With(PagedCall(64), [&](Call& c) { c.tree_mask = &word, c.max_q_len = 65; }), 90,
       LONGSPAN_ATTN_TREE},
      {With(PagedCall(64), [&](Call& c) { c.tree_mask = &word, c.tree_mask_stride = -1; }), 90,
       LONGSPAN_ATTN_TREE},
      {With(PagedCall(64), [&](Call& c) { c.tree_mask = &word, c.family = LONGSPAN_ATTN_PREFILL; }),
       90, LONGSPAN_ATTN_TREE},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(&row - rows);
    AttnChoice choice;
    EXPECT_EQ(ChooseAttn(row.call, row.compute_capability, &choice), row.status);
    EXPECT_NE(std::string(choice.reason), "");
  }
}

// Element offset of a token's key, head 0, through the view that kernels get.
int64_t OffsetInView(const AttentionParams& p, const AttnChoice& choice,
                     const std::vector<int32_t>& table, int32_t seq, int32_t token) {
  const int32_t* ids = table.data() + int64_t{seq} * choice.ids_per_seq;
  if (choice.keys == AttnKeys::kOnePiece) return (ids[0] + int64_t{token}) * p.k_token_stride;
  return ids[token / p.block_size] * p.k_block_stride + token % p.block_size * p.k_token_stride;
}

void ExpectEveryTokenFound(const longspan_attn_call& call, const std::vector<int32_t>& kv_rows,
                           const std::vector<int32_t>& starts, AttnKeys keys) {
  AttnChoice choice;
  ASSERT_EQ(ChooseAttn(call, 90, &choice), LONGSPAN_ATTN_OK);
  ASSERT_EQ(choice.keys, keys);
  longspan_attn_lengths lengths = {};
  lengths.struct_bytes = sizeof(lengths);
  lengths.kv_rows = kv_rows.data();
  lengths.kv_starts = starts.empty() ? nullptr : starts.data();
  std::vector<int32_t> table(size_t{4} * choice.ids_per_seq, -1);
  FillAttnTable(call, choice, lengths, table);
  const AttentionParams params = AttnParams(call, choice);
  const int64_t num_blocks = AttnNumBlocks(call, choice);
  for (int32_t seq = 0; seq < call.num_seqs; ++seq) {
    const int32_t start = starts.empty() ? 0 : starts[seq];
    for (int32_t token = 0; start + token < call.kv_capacity; ++token) {
      ASSERT_EQ(OffsetInView(params, choice, table, seq, token),
                kv_rows[seq] * call.k_block_stride + (start + token) * call.k_token_stride)
          << "sequence " << seq << ", token " << token;
    }
  }
  if (keys == AttnKeys::kRowBlocks) {
    for (const int32_t id : table) ASSERT_TRUE(id >= 0 && id < num_blocks) << id;
    // The copy engine reads blocks whole: the last one ends with the last row.
    const int64_t end =
        (call.num_blocks - 1) * call.k_block_stride + call.kv_capacity * call.k_token_stride;
    EXPECT_EQ(num_blocks * params.k_block_stride, end);
  }
}

TEST(AttnChoice, RowsAsWholeBlocksFindEveryToken) {
  ExpectEveryTokenFound(RowsCall(), {3, 0, 2, 2}, {}, AttnKeys::kRowBlocks);
  for (const int64_t tokens : {16, 48, 288, 640}) {
    SCOPED_TRACE(tokens);
    longspan_attn_call call = RowsCall();
    SetRowCapacity(&call, tokens);
    ExpectEveryTokenFound(call, {0, 1, 2, 3}, {}, AttnKeys::kRowBlocks);
  }
}

TEST(AttnChoice, RowsOfAnyLengthAndStartFindEveryToken) {
  for (const int64_t tokens : {1, 17, 257, 1000}) {
    SCOPED_TRACE(tokens);
    longspan_attn_call call = RowsCall();
    SetRowCapacity(&call, tokens);
    ExpectEveryTokenFound(call, {3, 1, 0, 2}, {}, AttnKeys::kUnitBlocks);
    call.kv_layout = LONGSPAN_ATTN_PACKED;
    ExpectEveryTokenFound(call, {3, 1, 0, 2}, {0, 0, static_cast<int32_t>(tokens) - 1, 0},
                          AttnKeys::kUnitBlocks);
  }
}

TEST(AttnChoice, HeadsBeforeTokensFindEveryToken) {
  longspan_attn_call call = RowsCall();
  call.k_token_stride = call.v_token_stride = 128;
  call.k_head_stride = call.v_head_stride = 4096 * 128;
  ExpectEveryTokenFound(call, {0, 1, 2, 3}, {}, AttnKeys::kRowBlocks);
  call.kv_layout = LONGSPAN_ATTN_PACKED;
  ExpectEveryTokenFound(call, {0, 0, 0, 0}, {0, 5, 700, 4095}, AttnKeys::kUnitBlocks);
  call.max_q_len = 100;
  ExpectEveryTokenFound(call, {0, 1, 1, 3}, {0, 5, 700, 4095}, AttnKeys::kOnePiece);
}

TEST(AttnChoice, RowsWithAGapFindEveryToken) {
  longspan_attn_call call = RowsCall();
  call.k_block_stride = call.v_block_stride += 8;  // no whole token
  ExpectEveryTokenFound(call, {3, 0, 1, 2}, {}, AttnKeys::kUnitBlocks);
  call.v_block_stride += 8;  // other steps than k's
  AttnChoice choice;
  EXPECT_EQ(ChooseAttn(call, 90, &choice), LONGSPAN_ATTN_STRIDE);
}

TEST(AttnChoice, OneRowReadByAllFindsEveryToken) {
  longspan_attn_call call = RowsCall();
  call.k_block_stride = call.v_block_stride = 0;
  ExpectEveryTokenFound(call, {0, 1, 2, 3}, {}, AttnKeys::kRowBlocks);
}

TEST(AttnChoice, LengthsThatDoNotFitAreRefused) {
  longspan_attn_call call = RowsCall();
  const std::vector<int32_t> cu = {0, 1, 2, 3, 4};
  std::vector<int32_t> lens = {0, 1, 4095, 4096};
  longspan_attn_lengths lengths = {};
  lengths.struct_bytes = sizeof(lengths);
  lengths.cu_seqlens_q = cu.data();
  lengths.seq_lens = lens.data();
  EXPECT_EQ(CheckAttnLengths(call, lengths), LONGSPAN_ATTN_OK);
  lens[1] = 4097;
  EXPECT_EQ(CheckAttnLengths(call, lengths), LONGSPAN_ATTN_SHAPE) << "past its row";
  lens[1] = -1;
  EXPECT_EQ(CheckAttnLengths(call, lengths), LONGSPAN_ATTN_SHAPE) << "negative";
  lens[1] = 1;
  const std::vector<int32_t> rows = {0, 1, 2, 4};
  lengths.kv_rows = rows.data();
  EXPECT_EQ(CheckAttnLengths(call, lengths), LONGSPAN_ATTN_SHAPE) << "a row that is not there";
  lengths.kv_rows = nullptr;
  const std::vector<int32_t> too_long = {0, 2, 2, 3, 4};
  lengths.cu_seqlens_q = too_long.data();
  EXPECT_EQ(CheckAttnLengths(call, lengths), LONGSPAN_ATTN_SHAPE) << "more than max_q_len";
  lengths.cu_seqlens_q = cu.data();
  call.total_q = 3;
  EXPECT_EQ(CheckAttnLengths(call, lengths), LONGSPAN_ATTN_SHAPE) << "more rows than q has";
  call.total_q = 4;
  call.kv_layout = LONGSPAN_ATTN_PACKED;
  EXPECT_EQ(CheckAttnLengths(call, lengths), LONGSPAN_ATTN_NULL) << "no starts";
  lengths.struct_bytes = 8;
  EXPECT_EQ(CheckAttnLengths(call, lengths), LONGSPAN_ATTN_STRUCT);
  longspan_attn_call paged = PagedCall(64);
  lengths.struct_bytes = sizeof(lengths);
  lens = {0, 1, 64, 20 * 64};
  EXPECT_EQ(CheckAttnLengths(paged, lengths), LONGSPAN_ATTN_OK);
  lens[3] += 1;
  EXPECT_EQ(CheckAttnLengths(paged, lengths), LONGSPAN_ATTN_SHAPE) << "past the table";
}

TEST(AttnHeader, IsC99) { EXPECT_EQ(longspan_attn_header_is_c99(), LONGSPAN_ATTN_ABI); }

}  // namespace
}  // namespace longspan
