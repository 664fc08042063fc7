// Connections as pairs of sockets: what the gate lets through, what it closes, and that it only
// looks.
#include "server/preface_gate.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace longspan {
namespace {

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// Two ends of one connection: the client's, closed with this, and the server's, which the gate
// owns.
struct Pair {
  Pair() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    client = ends[0];
    server = ends[1];
  }
  ~Pair() { ::close(client); }
  void Send(std::string_view bytes) const {
    EXPECT_EQ(::send(client, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }
  bool IsClosedByServer() const {
    pollfd wait{client, POLLIN, 0};
    char byte;
    return ::poll(&wait, 1, 30'000) == 1 && ::recv(client, &byte, 1, 0) <= 0;
  }
  int client;
  int server;
};

// What came through; closes it at the end.
class Passed {
 public:
  ~Passed() {
    for (const auto& [listener_fd, fd] : all_) ::close(fd);
  }
  Listener::Sink sink() {
    return [this](int listener_fd, int fd) {
      const std::lock_guard lock(mutex_);
      all_.emplace_back(listener_fd, fd);
      changed_.notify_all();
    };
  }
  std::vector<std::pair<int, int>> WaitFor(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(
        changed_.wait_for(lock, std::chrono::seconds(30), [&] { return all_.size() >= count; }));
    return all_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::pair<int, int>> all_;
};

TEST(PrefaceGate, Fault_C16_BeginningsOfHttp2) {
  for (size_t size = 1; size <= kPreface.size(); ++size) {
    EXPECT_TRUE(IsHttp2Preface(kPreface.substr(0, size)));
  }
  EXPECT_TRUE(IsHttp2Preface(std::string(kPreface) + "\xff more"));
  for (const char* bytes : {"GET / HTTP/1.1\r\n", "POST / HTTP/1.1\r\n", "PRI * HTTP/1.0",
                            "\x16\x03", "pri * HTTP/2.0", "x"}) {
    EXPECT_FALSE(IsHttp2Preface(bytes)) << bytes;
  }
}

TEST(PrefaceGate, PassesAConnectionOnWhenItBeginsAndReadsNothingOfIt) {
  Passed passed;
  PrefaceGate gate("test", passed.sink());
  const Pair early, late, partial;
  early.Send(kPreface);
  gate.Take(7, early.server);
  EXPECT_EQ(passed.WaitFor(1)[0], std::make_pair(7, early.server));
  gate.Take(7, late.server);
  gate.Take(8, partial.server);
  partial.Send("PRI");
  EXPECT_EQ(passed.WaitFor(2)[1], std::make_pair(8, partial.server))
      << "the silent one waits alone";
  late.Send(kPreface);
  EXPECT_EQ(passed.WaitFor(3)[2], std::make_pair(7, late.server));
  char bytes[64];
  EXPECT_EQ(::recv(early.server, bytes, sizeof bytes, 0), static_cast<ssize_t>(kPreface.size()));
}

TEST(PrefaceGate, Fault_C16_ClosesWhatIsNotHttp2AndWhatIsClosed) {
  Passed passed;
  PrefaceGate gate("test", passed.sink());
  const Pair noise, good, gone;
  gate.Take(7, noise.server);
  gate.Take(7, good.server);
  gate.Take(7, gone.server);
  noise.Send("GET / HTTP/1.1\r\n");
  EXPECT_TRUE(noise.IsClosedByServer());
  ::shutdown(gone.client, SHUT_WR);
  EXPECT_TRUE(gone.IsClosedByServer());
  good.Send(kPreface);
  EXPECT_EQ(passed.WaitFor(1), (std::vector<std::pair<int, int>>{{7, good.server}}));
}

TEST(PrefaceGate, ClosesWhatItStillWaitsForWhenItEnds) {
  Passed passed;
  const Pair silent;
  {
    PrefaceGate gate("test", passed.sink());
    gate.Take(7, silent.server);
  }
  EXPECT_TRUE(silent.IsClosedByServer());
}

TEST(PrefaceGate, ClosesWhatIsSilentForTooLong) {
  Passed passed;
  PrefaceGate gate("test", passed.sink(), std::chrono::seconds(0));
  const Pair silent;
  gate.Take(7, silent.server);
  EXPECT_TRUE(silent.IsClosedByServer());
}

TEST(PrefaceGate, BeyondItsNumberTheOldestGoesOn) {
  Passed passed;
  PrefaceGate gate("test", passed.sink());
  constexpr size_t kMany = 1024 + 3;
  std::vector<int> clients;
  std::vector<int> servers;
  for (size_t i = 0; i < kMany; ++i) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) {
      for (const int fd : clients) ::close(fd);
      for (const int fd : servers) gate.Take(7, fd);
      GTEST_SKIP() << "the file table has no room for " << 2 * kMany << " sockets";
    }
    clients.push_back(ends[0]);
    servers.push_back(ends[1]);
  }
  for (const int fd : servers) gate.Take(7, fd);
  const auto first = passed.WaitFor(3);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(first[i].second, servers[i]);
  for (const int fd : clients) ::close(fd);
}

TEST(RateLimit, LetsTheFirstThroughAndCountsTheRest) {
  RateLimit limit(std::chrono::hours(1));
  EXPECT_EQ(limit.Take(), 0);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(limit.Take(), -1);
  RateLimit all(std::chrono::seconds(0));
  EXPECT_EQ(all.Take(), 0);
  EXPECT_EQ(all.Take(), 0);
}

}  // namespace
}  // namespace longspan
