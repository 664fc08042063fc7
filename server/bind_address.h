// Addresses of listeners: what they look like and which of them are safe without TLS and
// authentication.
#pragma once

#include <string>

#include "core/status.h"

namespace longspan {

// HOST:PORT with a numeric host or "localhost", [IPV6]:PORT, or unix:PATH. `flag` is named in
// errors.
Status CheckAddressSyntax(const std::string& flag, const std::string& address);

// 127.0.0.0/8, ::1, localhost, or a unix socket.
bool IsLocalAddress(const std::string& address);

// kInvalidArgument for an address others can reach, unless insecure_bind.
Status CheckBindPolicy(const std::string& flag, const std::string& address, bool insecure_bind);

// The default of --admin-listen: longspan-PID.sock in XDG_RUNTIME_DIR, else /run when writable,
// else the temporary folder.
std::string DefaultAdminAddress();

}  // namespace longspan
