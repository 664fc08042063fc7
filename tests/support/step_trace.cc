// One Visit per type lists its fields; Writer and Reader walk them in the same order, so the two
// cannot disagree.
#include "tests/support/step_trace.h"

#include <charconv>
#include <concepts>
#include <type_traits>
#include <utility>
#include <vector>

namespace longspan {

namespace {

template <typename Archive, typename T>
void Field(Archive& archive, T& value);

template <typename Archive>
void Visit(Archive& archive, SamplingParams& s) {
  archive(s.temperature, s.top_k, s.top_p, s.min_p, s.repetition_penalty, s.presence_penalty,
          s.frequency_penalty, s.seed, s.sequence_index, s.logit_bias, s.allowed_token_ids,
          s.bad_words, s.min_tokens, s.stop_token_ids, s.num_logprobs, s.num_prompt_logprobs);
}

template <typename Archive>
void Visit(Archive& archive, AdmittedSequence& a) {
  archive(a.id, a.slot, a.sampling, a.num_prompt_tokens, a.num_history_tokens, a.adapter);
}

template <typename Archive>
void Visit(Archive& archive, ScheduledSequence& s) {
  archive(s.id, s.slot, s.num_computed_tokens, s.num_scheduled_tokens, s.num_token_ids,
          s.num_logits, s.samples, s.num_new_blocks);
}

template <typename Archive>
void Visit(Archive& archive, BlockCopy& c) {
  archive(c.src, c.dst, c.num_tokens);
}

template <typename Archive>
void Visit(Archive& archive, SchedulerOutput& o) {
  archive(o.step, o.admitted, o.scheduled, o.copies, o.token_ids, o.history, o.new_blocks,
          o.released_slots);
}

template <typename Archive>
void Visit(Archive& archive, Logprobs& l) {
  archive(l.token, l.logprob, l.top_ids, l.top_logprobs);
}

template <typename Archive>
void Visit(Archive& archive, StepResult& r) {
  archive(r.step, r.num_tokens, r.token_ids, r.logprobs, r.num_prompt_logprobs, r.prompt_logprobs,
          r.nonfinite, r.kv_bytes_read, r.attention_seconds, r.attention_splits);
}

template <typename T>
struct IsVector : std::false_type {};
template <typename T>
struct IsVector<std::vector<T>> : std::true_type {};
template <typename T>
struct IsPair : std::false_type {};
template <typename A, typename B>
struct IsPair<std::pair<A, B>> : std::true_type {};

class Writer {
 public:
  explicit Writer(std::string_view name) : line_(name) {}

  template <typename... T>
  void operator()(T&... values) {
    (Field(*this, values), ...);
  }
  template <typename T>
  void Number(T& value) {
    char text[40];
    const auto end = std::to_chars(text, text + sizeof(text), value).ptr;
    line_ += ' ';
    line_.append(text, end);
  }
  template <typename T>
  void List(std::vector<T>& list) {
    size_t size = list.size();
    Number(size);
    for (T& item : list) Field(*this, item);
  }
  std::string TakeLine() { return std::move(line_); }

 private:
  std::string line_;
};

class Reader {
 public:
  Reader(std::string_view name, std::string_view line) {
    ok_ = line.substr(0, name.size()) == name;
    if (ok_) rest_ = line.substr(name.size());
  }

  template <typename... T>
  void operator()(T&... values) {
    (Field(*this, values), ...);
  }
  template <typename T>
  void Number(T& value) {
    if (!ok_ || rest_.size() < 2 || rest_[0] != ' ') {
      ok_ = false;
      return;
    }
    const auto [end, error] = std::from_chars(rest_.data() + 1, rest_.data() + rest_.size(), value);
    ok_ = error == std::errc{};
    rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
  }
  template <typename T>
  void List(std::vector<T>& list) {
    size_t size = 0;
    Number(size);
    ok_ = ok_ && size <= rest_.size();  // an item takes two characters at least
    list.clear();
    for (size_t i = 0; ok_ && i < size; ++i) Field(*this, list.emplace_back());
  }
  bool complete() const { return ok_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool ok_ = false;
};

template <typename Archive, typename T>
void Field(Archive& archive, T& value) {
  if constexpr (std::same_as<T, bool>) {
    int32_t number = value;
    archive.Number(number);
    value = number != 0;
  } else if constexpr (std::is_enum_v<T>) {
    auto number = ToInt(value);
    archive.Number(number);
    value = T{number};
  } else if constexpr (std::is_arithmetic_v<T>) {
    archive.Number(value);
  } else if constexpr (IsVector<T>::value) {
    archive.List(value);
  } else if constexpr (IsPair<T>::value) {
    archive(value.first, value.second);
  } else {
    Visit(archive, value);
  }
}

// Visit takes values that a Reader fills; a Writer leaves them as they are.
template <typename T>
std::string WriteLine(std::string_view name, const T& value) {
  Writer writer(name);
  Visit(writer, const_cast<T&>(value));
  return writer.TakeLine();
}

template <typename T>
bool ReadLine(std::string_view name, std::string_view line, T& value) {
  Reader reader(name, line);
  Visit(reader, value);
  return reader.complete();
}

}  // namespace

std::string WriteOutputLine(const SchedulerOutput& output) { return WriteLine("output", output); }

std::string WriteResultLine(const StepResult& result) { return WriteLine("result", result); }

bool ReadOutputLine(std::string_view line, SchedulerOutput& output) {
  return ReadLine("output", line, output);
}

bool ReadResultLine(std::string_view line, StepResult& result) {
  return ReadLine("result", line, result);
}

}  // namespace longspan
