// Parses and judges addresses, and finds a folder for the default Admin socket. A socket file
// counts as left behind only when its process is gone and nobody answers on it.
#include "server/bind_address.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "core/log.h"

namespace longspan {
namespace {

constexpr std::string_view kUnix = "unix:";
constexpr size_t kMaxSocketPath = sizeof(sockaddr_un{}.sun_path) - 1;
constexpr size_t kMaxShownAddress = 256;
constexpr std::string_view kAdminPrefix = "longspan-";
constexpr std::string_view kAdminSuffix = ".sock";

Status Malformed(std::string_view address, std::string_view problem) {
  return InvalidArgument("\"{}\" {}", Escaped(address, kMaxShownAddress), problem);
}

bool IsPort(std::string_view text) {
  if (text.starts_with('-')) return false;
  int port = -1;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, port);
  return parsed.ec == std::errc() && parsed.ptr == end && port >= 0 && port <= 65535;
}

std::string AdminPath(const std::string& folder) {
  return fmt::format("{}/{}{}{}", folder, kAdminPrefix, getpid(), kAdminSuffix);
}

bool CanHoldSocket(const char* folder) {
  return folder != nullptr && *folder == '/' && ::access(folder, W_OK | X_OK) == 0 &&
         AdminPath(folder).size() <= kMaxSocketPath;
}

// The process id in the name of an admin socket, or -1.
pid_t OwnerOf(std::string_view name) {
  if (!name.starts_with(kAdminPrefix) || !name.ends_with(kAdminSuffix)) return -1;
  name.remove_prefix(kAdminPrefix.size());
  name.remove_suffix(kAdminSuffix.size());
  pid_t pid = -1;
  const auto parsed = std::from_chars(name.data(), name.data() + name.size(), pid);
  return parsed.ec == std::errc() && parsed.ptr == name.data() + name.size() && pid > 0 ? pid : -1;
}

}  // namespace

bool BindAddress::is_local() const {
  return is_unix() || host == "localhost" || host == "::1" ||
         (host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string::npos);
}

StatusOr<BindAddress> ParseBindAddress(const std::string& address) {
  BindAddress out;
  if (address.starts_with(kUnix)) {
    out.socket_path = address.substr(kUnix.size());
    const bool has_nul = out.socket_path.find('\0') != std::string::npos;
    if (out.socket_path.empty() || out.socket_path.size() > kMaxSocketPath || has_nul) {
      return Malformed(address, fmt::format("has a path of {} bytes (1..{})",
                                            out.socket_path.size(), kMaxSocketPath));
    }
    return out;
  }
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return Malformed(address, "is neither HOST:PORT nor unix:PATH");
  out.host = address.substr(0, colon);
  out.port = address.substr(colon + 1);
  if (!IsPort(out.port)) return Malformed(address, "has no port that is a number (0..65535)");
  if (out.host.size() > 2 && out.host.front() == '[' && out.host.back() == ']') {
    out.host = out.host.substr(1, out.host.size() - 2);
  } else if (out.host.find_first_of(":[]") != std::string::npos) {
    return Malformed(address, "needs brackets around an IPv6 address: [ADDRESS]:PORT");
  }
  if (out.host.empty()) return Malformed(address, "has no host");
  return out;
}

Status CheckBindAddress(const std::string& flag, ListenerKind kind, const std::string& address,
                        bool insecure_bind) {
  const StatusOr<BindAddress> parsed = ParseBindAddress(address);
  if (!parsed.ok()) return InvalidArgument("{}: {}", flag, StatusMessage(parsed.status()));
  if (kind == ListenerKind::kMetrics && parsed->is_unix()) {
    return InvalidArgument("{}: a scraper needs HOST:PORT, not a unix socket", flag);
  }
  if (insecure_bind || parsed->is_unix()) return Status();
  if (kind == ListenerKind::kAdmin) {
    return InvalidArgument(
        "{}: everybody on this machine can reach {}, and there is no authentication (unix:PATH; "
        "--insecure-bind allows it)",
        flag, address);
  }
  if (parsed->is_local()) return Status();
  return InvalidArgument(
      "{}: {} can be reached by others, and there is no TLS or authentication (loopback or "
      "unix:PATH; --insecure-bind allows it)",
      flag, address);
}

bool IsLocalAddress(const std::string& address) {
  const StatusOr<BindAddress> parsed = ParseBindAddress(address);
  return parsed.ok() && parsed->is_local();
}

bool IsSocketAnswered(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.size() > kMaxSocketPath) return true;
  std::memcpy(name.sun_path, path.c_str(), path.size() + 1);
  const int probe = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (probe < 0) return true;
  const int result = ::connect(probe, reinterpret_cast<const sockaddr*>(&name), sizeof name);
  const bool is_dead = result != 0 && (errno == ECONNREFUSED || errno == ENOENT);
  ::close(probe);
  return !is_dead;
}

std::string DefaultAdminAddress() {
  std::string folder = "/tmp";
  for (const char* candidate : {static_cast<const char*>(std::getenv("XDG_RUNTIME_DIR")), "/run",
                                static_cast<const char*>(std::getenv("TMPDIR"))}) {
    if (!CanHoldSocket(candidate)) continue;
    folder = candidate;
    break;
  }
  return std::string(kUnix) + AdminPath(folder);
}

// Another pid namespace may share the folder, so a dead id alone is no proof; and a server between
// bind and listen does not answer, so silence alone is none either.
void RemoveDeadAdminSockets(const std::string& default_admin_address) {
  const std::filesystem::path own(default_admin_address.substr(kUnix.size()));
  std::error_code error;
  std::filesystem::directory_iterator it(own.parent_path(), error);
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    const std::string path = it->path();
    const pid_t owner = OwnerOf(it->path().filename().string());
    struct stat info {};
    if (owner < 0 || ::lstat(path.c_str(), &info) != 0 || !S_ISSOCK(info.st_mode)) continue;
    const bool is_dead = ::kill(owner, 0) != 0 && errno == ESRCH;
    if (info.st_uid == ::getuid() && is_dead && !IsSocketAnswered(path)) ::unlink(path.c_str());
  }
}

}  // namespace longspan
