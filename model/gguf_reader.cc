// Buffered reading with one sticky error: after the first one every read gives nothing, so that
// callers check once. It stops at 256 MiB, however large the file claims to be.
#include "model/gguf_reader.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace longspan {
namespace {

static_assert(std::endian::native == std::endian::little,
              "fields are copied as they lie in the file");

// Far above every known model's; bounds memory and time where the size of the file does not (a
// sparse file may claim terabytes).
constexpr int64_t kMaxHeaderBytes = 256 << 20;
constexpr int64_t kBufferBytes = 64 << 10;

}  // namespace

GgufReader::GgufReader(const InputFile& file)
    : file_(file), end_(std::min(file.size(), kMaxHeaderBytes)) {}

void GgufReader::Fail(const std::string& message) {
  if (ok()) status_ = InvalidArgument("{}: {}", file_.path(), message);
}

std::string GgufReader::String(uint64_t max_bytes, std::string_view what) {
  const auto length = Number<uint64_t>(what);
  const uint64_t limit = std::min(remaining(), max_bytes);
  if (length > limit) Fail("{} claims {} bytes, wanted at most {} here", what, length, limit);
  if (!ok()) return {};
  std::string text(length, '\0');
  Bytes(text.data(), length, what);
  return text;
}

void GgufReader::Bytes(void* out, uint64_t bytes, std::string_view what) {
  if (!ok()) return;
  if (bytes > remaining()) return Fail("ends at byte {} inside {}", end_, what);
  auto* to = static_cast<std::byte*>(out);
  while (bytes > 0) {
    const int64_t buffered = buffer_start_ + static_cast<int64_t>(buffer_.size()) - position_;
    if (buffered <= 0) {
      if (!FillBuffer()) return;
      continue;
    }
    const uint64_t part = std::min<uint64_t>(bytes, static_cast<uint64_t>(buffered));
    std::memcpy(to, buffer_.data() + (position_ - buffer_start_), part);
    to += part;
    bytes -= part;
    position_ += static_cast<int64_t>(part);
  }
}

bool GgufReader::FillBuffer() {
  buffer_start_ = position_;
  buffer_.resize(static_cast<size_t>(std::min(kBufferBytes, end_ - position_)));
  status_ = file_.Read(buffer_start_, buffer_);
  return ok();
}

}  // namespace longspan
