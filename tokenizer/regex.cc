// PCRE2 behind RAII: compile with JIT, match with a limit on steps that grows with the text, and
// bounded stack and heap. A match over its limit is an error of the text, not of the server.
#include "tokenizer/regex.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace longspan {
namespace {

constexpr size_t kMaxPatternBytes = 64 << 10;
constexpr size_t kJitStackStartBytes = 64 << 10;
constexpr size_t kJitStackMaxBytes = 4 << 20;
constexpr uint32_t kMaxHeapKibibytes = 256 << 10;

// Steps that one match may take: honest patterns need a few per byte of a long run.
uint32_t MatchLimit(size_t text_bytes) {
  constexpr uint64_t kFixed = 1'000'000;
  constexpr uint64_t kPerByte = 16;
  return static_cast<uint32_t>(
      std::min<uint64_t>(kFixed + kPerByte * text_bytes, std::numeric_limits<uint32_t>::max()));
}

std::string ErrorText(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

template <auto Free>
struct FreeWith {
  template <typename T>
  void operator()(T* pointer) const {
    Free(pointer);
  }
};

}  // namespace

struct Regex::Code {
  std::unique_ptr<pcre2_code, FreeWith<pcre2_code_free>> compiled;
};

struct RegexScratch::Buffers {
  std::unique_ptr<pcre2_match_data, FreeWith<pcre2_match_data_free>> match;
  std::unique_ptr<pcre2_match_context, FreeWith<pcre2_match_context_free>> context;
  std::unique_ptr<pcre2_jit_stack, FreeWith<pcre2_jit_stack_free>> jit_stack;
};

RegexScratch::RegexScratch() : buffers_(std::make_unique<Buffers>()) {
  buffers_->match.reset(pcre2_match_data_create(1, nullptr));
  buffers_->context.reset(pcre2_match_context_create(nullptr));
  // Null where PCRE2 has no JIT for the processor; matching then uses the interpreter.
  buffers_->jit_stack.reset(
      pcre2_jit_stack_create(kJitStackStartBytes, kJitStackMaxBytes, nullptr));
  if (buffers_->context) {
    pcre2_jit_stack_assign(buffers_->context.get(), nullptr, buffers_->jit_stack.get());
    pcre2_set_heap_limit(buffers_->context.get(), kMaxHeapKibibytes);
  }
}

RegexScratch::~RegexScratch() = default;

StatusOr<Regex> Regex::Compile(const std::string& pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return InvalidArgument("pattern of {} bytes (limit {})", pattern.size(), kMaxPatternBytes);
  }
  std::unique_ptr<pcre2_compile_context, FreeWith<pcre2_compile_context_free>> context(
      pcre2_compile_context_create(nullptr));
  if (!context) return MakeStatus(absl::StatusCode::kResourceExhausted, "pattern: out of memory");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t error_offset = 0;
  auto code = std::make_shared<Code>();
  code->compiled.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error,
                                     &error_offset, context.get()));
  if (!code->compiled) {
    return InvalidArgument("pattern: {} at byte {}", ErrorText(error), error_offset);
  }
  pcre2_jit_compile(code->compiled.get(), PCRE2_JIT_COMPLETE);  // failure: the interpreter is used
  return Regex(std::move(code));
}

StatusOr<std::optional<RegexSpan>> Regex::Find(std::string_view text, size_t from,
                                               RegexScratch& scratch) const {
  RegexScratch::Buffers& buffers = *scratch.buffers_;
  if (!buffers.match || !buffers.context) {
    return MakeStatus(absl::StatusCode::kResourceExhausted, "pattern match: out of memory");
  }
  pcre2_set_match_limit(buffers.context.get(), MatchLimit(text.size()));
  const int result =
      pcre2_match(code_->compiled.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                  from, PCRE2_NO_UTF_CHECK, buffers.match.get(), buffers.context.get());
  if (result == PCRE2_ERROR_NOMATCH) return std::optional<RegexSpan>();
  if (result < 0) {
    return InvalidArgument("text: the tokenizer's pattern gave up at byte {} ({})", from,
                           ErrorText(result));
  }
  const size_t* offsets = pcre2_get_ovector_pointer(buffers.match.get());
  return std::optional<RegexSpan>({offsets[0], offsets[1]});
}

}  // namespace longspan
