// Opening and reading of model files. No knowledge of any format.
#include "model/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "core/log.h"

namespace longspan {
namespace {

constexpr size_t kMaxShownPath = 512;

int64_t ChangeTime(const struct stat& info) {
  return info.st_mtim.tv_sec * int64_t{1000000000} + info.st_mtim.tv_nsec;
}

}  // namespace

StatusOr<InputFile> InputFile::Open(const std::string& path) {
  InputFile file;
  file.path_ = Escaped(path, kMaxShownPath);
  if (path.find('\0') != std::string::npos) {
    return InvalidArgument("{}: a file name cannot contain a NUL byte", file.path_);
  }
  // Non-blocking: opening a pipe that nobody writes to must be refused, not waited for.
  file.descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.descriptor_ < 0) {
    return MakeStatus(absl::StatusCode::kNotFound, "{}: cannot be opened: {}", file.path_,
                      std::strerror(errno));
  }
  struct stat info {};
  if (::fstat(file.descriptor_, &info) != 0 || !S_ISREG(info.st_mode)) {
    return InvalidArgument("{}: is not a regular file", file.path_);
  }
  file.size_ = info.st_size;
  file.changed_ns_ = ChangeTime(info);
  return file;
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_),
      changed_ns_(other.changed_ns_) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  std::swap(changed_ns_, other.changed_ns_);
  return *this;
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status InputFile::Read(int64_t offset, std::span<std::byte> out) const {
  const auto bytes = static_cast<int64_t>(out.size());
  CHECK(offset >= 0 && offset <= size_ && bytes <= size_ - offset, "offset {} bytes {} size {}",
        offset, bytes, size_);
  int64_t done = 0;
  while (done < bytes) {
    const ssize_t got =
        ::pread(descriptor_, out.data() + done, static_cast<size_t>(bytes - done), offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return InvalidArgument("{}: cannot be read at byte {}: {}", path_, offset + done,
                             std::strerror(errno));
    }
    if (got == 0) break;
    done += got;
  }
  struct stat info {};
  if (done < bytes || ::fstat(descriptor_, &info) != 0 || info.st_size != size_ ||
      ChangeTime(info) != changed_ns_) {
    return InvalidArgument("{}: changed while it was being read", path_);
  }
  return absl::OkStatus();
}

StatusOr<std::string> ReadTextFile(const std::string& path, int64_t max_bytes) {
  ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  if (file.size() > max_bytes) {
    return InvalidArgument("{}: has {} bytes, wanted at most {}", file.path(), file.size(),
                           max_bytes);
  }
  std::string text(static_cast<size_t>(file.size()), '\0');
  RETURN_IF_ERROR(file.Read(0, std::as_writable_bytes(std::span(text))));
  return text;
}

}  // namespace longspan
