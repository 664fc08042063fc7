#include "server/bind_address.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace longspan {
namespace {

constexpr std::string_view kUnix = "unix:";
constexpr size_t kMaxSocketPath = 107;  // sun_path less its end

std::string_view Host(std::string_view address) {
  std::string_view host = address.substr(0, address.rfind(':'));
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return host;
}

}  // namespace

Status CheckAddressSyntax(const std::string& flag, const std::string& address) {
  if (address.rfind(kUnix, 0) == 0) {
    const size_t length = address.size() - kUnix.size();
    if (length == 0 || length > kMaxSocketPath) {
      return InvalidArgument("{}: the path of \"{}\" has {} bytes (1..{})", flag, address, length,
                             kMaxSocketPath);
    }
    return Status();
  }
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return InvalidArgument("{}: \"{}\" is neither HOST:PORT nor unix:PATH", flag, address);
  }
  int port = -1;
  const char* end = address.data() + address.size();
  const auto parsed = std::from_chars(address.data() + colon + 1, end, port);
  if (parsed.ec != std::errc() || parsed.ptr != end || port < 0 || port > 65535) {
    return InvalidArgument("{}: the port of \"{}\" is not a number (0..65535)", flag, address);
  }
  return Status();
}

bool IsLocalAddress(const std::string& address) {
  if (address.rfind(kUnix, 0) == 0) return true;
  const std::string_view host = Host(address);
  return host == "localhost" || host == "::1" ||
         (host.rfind("127.", 0) == 0 &&
          host.find_first_not_of("0123456789.") == std::string_view::npos);
}

Status CheckBindPolicy(const std::string& flag, const std::string& address, bool insecure_bind) {
  if (IsLocalAddress(address) || insecure_bind) return Status();
  return InvalidArgument(
      "{}: {} can be reached by others, and there is no TLS or authentication (loopback or "
      "unix:PATH; "
      "--insecure-bind allows it)",
      flag, address);
}

std::string DefaultAdminAddress() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  std::string folder = runtime != nullptr ? runtime : "";
  if (folder.empty()) folder = access("/run", W_OK) == 0 ? "/run" : "";
  if (folder.empty()) {
    const char* temporary = std::getenv("TMPDIR");
    folder = temporary != nullptr ? temporary : "/tmp";
  }
  return fmt::format("{}{}/longspan-{}.sock", kUnix, folder, getpid());
}

}  // namespace longspan
