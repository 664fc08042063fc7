// Addresses of listeners: what they look like, which of them are safe without TLS and
// authentication, and where the Admin service listens by default.
#pragma once

#include <string>

#include "core/status.h"

namespace longspan {

// HOST:PORT, [IPV6]:PORT or unix:PATH, taken apart. Either socket_path or host and port are set.
struct BindAddress {
  std::string socket_path;
  std::string host;  // without brackets
  std::string port;  // 0..65535 in decimal

  bool is_unix() const { return !socket_path.empty(); }
  // 127.0.0.0/8, ::1, localhost, or a unix socket.
  bool is_local() const;
};

// Which listener an address is for decides what is allowed.
enum class ListenerKind {
  kInference,  // TCP or unix; other than loopback needs insecure_bind
  kAdmin,      // likewise, but any TCP needs it: only a socket file's mode is a credential
  kMetrics,    // TCP only; other than loopback needs insecure_bind
};

// kInvalidArgument when it is malformed.
StatusOr<BindAddress> ParseBindAddress(const std::string& address);

// kInvalidArgument, beginning with `flag`, when this listener must not have this address.
Status CheckBindAddress(const std::string& flag, ListenerKind kind, const std::string& address,
                        bool insecure_bind);

// Whether gRPC reflection is on by default there; malformed addresses are not local.
bool IsLocalAddress(const std::string& address);

// Whether a process answers on this socket file. True as well when that cannot be found out.
bool IsSocketAnswered(const std::string& path);

// The default of --admin-listen: longspan-PID.sock in the first of XDG_RUNTIME_DIR, /run, TMPDIR
// and /tmp that this process may write to.
std::string DefaultAdminAddress();

// Removes what dead servers of this user left beside that socket: a killed one leaves its file, and
// the next has another process id.
void RemoveDeadAdminSockets(const std::string& default_admin_address);

}  // namespace longspan
