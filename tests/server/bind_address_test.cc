// Which addresses parse, which need --insecure-bind, and which socket files are swept.
#include "server/bind_address.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "tests/support/temporary_folder.h"

namespace longspan {
namespace {

using testing::TemporaryFolder;

TEST(BindAddress, SyntaxNamesTheFlag) {
  for (const char* good : {"127.0.0.1:0", "localhost:50051", "[::1]:1", "unix:/run/x.sock"}) {
    EXPECT_TRUE(CheckBindAddress("--listen", ListenerKind::kInference, good, false).ok()) << good;
  }
  for (const std::string& bad :
       {std::string(""), std::string("50051"), std::string(":1"), std::string("h:"),
        std::string("h:65536"), std::string("h:-1"), std::string("h:-0"), std::string("h:1x"),
        std::string("::1:80"), std::string("[]:80"), std::string("[::1:80"), std::string("unix:"),
        "unix:" + std::string(108, 'a')}) {
    const Status status = CheckBindAddress("--listen", ListenerKind::kInference, bad, true);
    EXPECT_FALSE(status.ok()) << bad;
    EXPECT_EQ(StatusMessage(status).rfind("--listen: ", 0), 0u);
  }
}

TEST(BindAddress, PartsAreWithoutBrackets) {
  const auto v6 = ParseBindAddress("[::1]:80");
  ASSERT_TRUE(v6.ok());
  EXPECT_EQ(v6->host, "::1");
  EXPECT_EQ(v6->port, "80");
  const auto path = ParseBindAddress("unix:/run/a:b.sock");
  ASSERT_TRUE(path.ok());
  EXPECT_EQ(path->socket_path, "/run/a:b.sock");
}

TEST(BindAddress, Fault_T5_OtherAddressesNeedInsecureBind) {
  const auto check = [](const std::string& address, bool insecure) {
    return CheckBindAddress("--listen", ListenerKind::kInference, address, insecure).ok();
  };
  for (const char* local : {"127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "unix:/x"}) {
    EXPECT_TRUE(check(local, false)) << local;
    EXPECT_TRUE(IsLocalAddress(local)) << local;
  }
  for (const char* open :
       {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1", "127.example.org:1", "[fe80::1]:1"}) {
    EXPECT_FALSE(check(open, false)) << open;
    EXPECT_TRUE(check(open, true)) << open;
    EXPECT_FALSE(IsLocalAddress(open)) << open;
  }
}

TEST(BindAddress, Fault_T6_AdminOverTcpNeedsInsecureBind) {
  const auto check = [](const std::string& address, bool insecure) {
    return CheckBindAddress("--admin-listen", ListenerKind::kAdmin, address, insecure).ok();
  };
  EXPECT_TRUE(check("unix:/run/x.sock", false));
  for (const char* tcp : {"127.0.0.1:1", "localhost:1", "[::1]:1", "10.0.0.1:1"}) {
    EXPECT_FALSE(check(tcp, false)) << tcp;
    EXPECT_TRUE(check(tcp, true)) << tcp;
  }
}

TEST(BindAddress, MetricsAreServedOverTcpOnly) {
  EXPECT_TRUE(
      CheckBindAddress("--metrics-listen", ListenerKind::kMetrics, "127.0.0.1:1", false).ok());
  EXPECT_FALSE(CheckBindAddress("--metrics-listen", ListenerKind::kMetrics, "unix:/x", true).ok());
}

// Sets a variable for one test.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    const char* before = std::getenv(name);
    if (before != nullptr) before_ = before;
    had_ = before != nullptr;
    ::setenv(name, value.c_str(), 1);
  }
  ~Environment() { had_ ? ::setenv(name_, before_.c_str(), 1) : ::unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* const name_;
  std::string before_;
  bool had_ = false;
};

std::string FolderOf(const std::string& address) {
  return address.substr(5, address.rfind('/') - 5);
}

TEST(BindAddress, TheRuntimeFolderIsUsedOnlyWhenItIsOfUse) {
  const TemporaryFolder folder;
  {
    const Environment good("XDG_RUNTIME_DIR", folder.path());
    EXPECT_EQ(FolderOf(DefaultAdminAddress()), folder.path());
  }
  for (const std::string& useless : {std::string(), folder.Path("absent"), std::string("relative"),
                                     folder.Path("long") + std::string(200, 'x')}) {
    const Environment bad("XDG_RUNTIME_DIR", useless);
    const std::string address = DefaultAdminAddress();
    EXPECT_NE(FolderOf(address), useless);
    EXPECT_TRUE(CheckBindAddress("--admin-listen", ListenerKind::kAdmin, address, false).ok());
  }
}

void LeaveSocket(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::strncpy(name.sun_path, path.c_str(), sizeof name.sun_path - 1);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
  ::close(fd);  // as SIGKILL leaves it: the file stays
}

TEST(BindAddress, Fault_P3_AdminSocketsOfDeadServersAreRemoved) {
  const pid_t dead = ::fork();
  if (dead == 0) ::_exit(0);
  ::waitpid(dead, nullptr, 0);
  const TemporaryFolder folder;
  const Environment runtime("XDG_RUNTIME_DIR", folder.path());
  const std::string stale = folder.Path("longspan-" + std::to_string(dead) + ".sock");
  const std::string alive = folder.Path("longspan-" + std::to_string(::getppid()) + ".sock");
  const std::string other = folder.Path("other-" + std::to_string(dead) + ".sock");
  for (const std::string& path : {stale, alive, other}) LeaveSocket(path);
  const std::string file = folder.Write("longspan-" + std::to_string(dead) + "1.sock", "no socket");
  RemoveDeadAdminSockets(DefaultAdminAddress());
  EXPECT_NE(::access(stale.c_str(), F_OK), 0);
  for (const std::string& path : {alive, other, file}) EXPECT_EQ(::access(path.c_str(), F_OK), 0);
}

}  // namespace
}  // namespace longspan
