// Binding and accepting: addresses in use, stale socket files, a full file table.
#include "server/listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace longspan {
namespace {

using testing::TemporaryFolder;

// Keeps accepted sockets and lets a test wait for them.
class Accepted {
 public:
  ~Accepted() { CloseAll(); }
  Listener::Sink sink() {
    return [this](int, int fd) {
      const std::lock_guard lock(mutex_);
      fds_.push_back(fd);
      changed_.notify_all();
    };
  }
  void WaitFor(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(
        changed_.wait_for(lock, std::chrono::seconds(30), [&] { return fds_.size() >= count; }));
  }
  void CloseAll() {
    const std::lock_guard lock(mutex_);
    for (const int fd : fds_) ::close(fd);
    fds_.clear();
  }
  std::vector<int> fds() {
    const std::lock_guard lock(mutex_);
    return fds_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> fds_;
};

std::unique_ptr<Listener> MustBind(const std::string& address) {
  auto listener = Listener::Bind(address);
  EXPECT_TRUE(listener.ok()) << StatusMessage(listener.status());
  return listener.ok() ? *std::move(listener) : nullptr;
}

absl::StatusCode BindError(const std::string& address) {
  return Listener::Bind(address).status().code();
}

// A connected client socket, or -1.
int Connect(const std::string& address) {
  if (address.starts_with("unix:")) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::strncpy(name.sun_path, address.c_str() + 5, sizeof name.sun_path - 1);
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&name), sizeof name) == 0) return fd;
    ::close(fd);
    return -1;
  }
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  if (::connect(fd, reinterpret_cast<sockaddr*>(&name), sizeof name) == 0) return fd;
  ::close(fd);
  return -1;
}

// Whether the peer closes within the patience of the test.
bool IsClosedByPeer(int fd) {
  pollfd wait{fd, POLLIN, 0};
  char byte;
  return ::poll(&wait, 1, 30'000) == 1 && ::recv(fd, &byte, 1, 0) <= 0;
}

TEST(Listener, PortZeroReportsThePortItGot) {
  const auto listener = MustBind("127.0.0.1:0");
  EXPECT_TRUE(listener->address().starts_with("127.0.0.1:"));
  EXPECT_FALSE(listener->address().ends_with(":0"));
}

TEST(Listener, MalformedAddressesAreRefused) {
  for (const char* address : {"", "nothing", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x",
                              "127.0.0.1:65536", "127.0.0.1:-1", "::1:80", ":80", "unix:"}) {
    EXPECT_EQ(BindError(address), absl::StatusCode::kInvalidArgument) << address;
  }
  EXPECT_EQ(BindError("unix:/" + std::string(200, 'x')), absl::StatusCode::kInvalidArgument);
}

TEST(Listener, ANameIsBoundAtItsFirstUsableAddress) {
  const auto listener = MustBind("localhost:0");
  EXPECT_TRUE(listener->address().starts_with("127.0.0.1:")) << listener->address();
  const std::string port = listener->address().substr(listener->address().rfind(':'));
  EXPECT_EQ(BindError("localhost" + port), absl::StatusCode::kAlreadyExists)
      << "not on the name's other address either";
}

TEST(Listener, Fault_P5_ASecondServerOnOnePortIsRefused) {
  Accepted accepted;
  const auto first = MustBind("127.0.0.1:0");
  first->Start(accepted.sink());
  EXPECT_EQ(BindError(first->address()), absl::StatusCode::kAlreadyExists);
  const int client = Connect(first->address());
  accepted.WaitFor(1);
  EXPECT_EQ(accepted.fds().size(), 1u) << "the first one is unaffected";
  ::close(client);
}

TEST(Listener, Fault_P5_ASecondServerOnOneSocketPathIsRefused) {
  const TemporaryFolder folder;
  const std::string address = "unix:" + folder.Path("socket");
  Accepted accepted;
  const auto first = MustBind(address);
  first->Start(accepted.sink());
  EXPECT_EQ(BindError(address), absl::StatusCode::kAlreadyExists);
  const int client = Connect(address);
  EXPECT_GE(client, 0) << "the first one is unaffected";
  ::close(client);
}

TEST(Listener, Fault_P3_ASocketFileWithoutAnOwnerIsReplaced) {
  const TemporaryFolder folder;
  const std::string path = folder.Path("socket");
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::strncpy(name.sun_path, path.c_str(), sizeof name.sun_path - 1);
  const int dead = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(::bind(dead, reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
  ::close(dead);  // as SIGKILL leaves it: the file stays
  Accepted accepted;
  const auto listener = MustBind("unix:" + path);
  listener->Start(accepted.sink());
  const int client = Connect("unix:" + path);
  EXPECT_GE(client, 0);
  ::close(client);
}

TEST(Listener, AFileThatIsNoSocketIsLeftAlone) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("precious", "data");
  EXPECT_EQ(BindError("unix:" + path), absl::StatusCode::kAlreadyExists);
  struct stat info {};
  EXPECT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_size, 4);
}

TEST(Listener, SocketFilesAreForTheOwnerOnlyAndGoWithTheListener) {
  const TemporaryFolder folder;
  const std::string path = folder.Path("socket");
  {
    const auto listener = MustBind("unix:" + path);
    struct stat info {};
    ASSERT_EQ(::stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
  }
  EXPECT_NE(::access(path.c_str(), F_OK), 0);
}

TEST(Listener, AcceptedSocketsAreNonBlockingAndDieWithExec) {
  Accepted accepted;
  const auto listener = MustBind("127.0.0.1:0");
  listener->Start(accepted.sink());
  const int client = Connect(listener->address());
  accepted.WaitFor(1);
  const int fd = accepted.fds()[0];
  EXPECT_NE(::fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
  EXPECT_NE(::fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  ::close(client);
}

TEST(Listener, CloseEndsTheThreadAndFreesThePort) {
  Accepted accepted;
  const auto listener = MustBind("127.0.0.1:0");
  listener->Start(accepted.sink());
  const std::string address = listener->address();
  listener->Close();
  EXPECT_EQ(Connect(address), -1);
  listener->Close();
  EXPECT_NE(MustBind(address), nullptr);
}

// Lowers the limit of this process to what is open now and a few more.
class FewFiles {
 public:
  explicit FewFiles(int more) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const int next = ::open("/dev/null", O_RDONLY);
    rlimit few = before_;
    few.rlim_cur = static_cast<rlim_t>(next + more);
    ::close(next);
    ::setrlimit(RLIMIT_NOFILE, &few);
  }
  ~FewFiles() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST(Listener, Fault_C9_ANearlyFullFileTableRefusesSoftlyAndRecovers) {
  Accepted accepted;
  const auto listener = MustBind("127.0.0.1:0");
  listener->Start(accepted.sink());
  std::vector<int> clients;
  for (int i = 0; i < 60; ++i) clients.push_back(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<uint16_t>(
      std::stoi(listener->address().substr(listener->address().rfind(':') + 1))));
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  {
    const FewFiles few(40);  // some of the clients find room, the rest do not
    for (const int fd : clients) {
      ASSERT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
    }
    EXPECT_TRUE(IsClosedByPeer(clients.back()));
    accepted.WaitFor(1);
    EXPECT_LT(accepted.fds().size(), 60u);
  }
  for (const int fd : clients) ::close(fd);
  const size_t before = accepted.fds().size();
  const int canary = Connect(listener->address());
  accepted.WaitFor(before + 1);
  ::close(canary);
}

TEST(Listener, Fault_C9_AFullFileTableClosesTheWaitingConnection) {
  // UBSan opens a pipe to check an object's type for the first time: let it see a listener's thread
  // before the table is full.
  MustBind("127.0.0.1:0")->Start([](int, int fd) { ::close(fd); });
  Accepted accepted;
  const auto listener = MustBind("127.0.0.1:0");
  const int client = Connect(listener->address());  // waits in the kernel's queue
  {
    const FewFiles none(0);
    listener->Start(accepted.sink());
    EXPECT_TRUE(IsClosedByPeer(client));
    EXPECT_TRUE(accepted.fds().empty());
  }
  ::close(client);
  const int canary = Connect(listener->address());
  accepted.WaitFor(1);
  ::close(canary);
}

}  // namespace
}  // namespace longspan
