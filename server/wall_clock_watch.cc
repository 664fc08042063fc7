// A timer on the wall clock whose hour never comes: the kernel cancels it when the clock is set,
// and that is the notice. Setting it to a moment from now ends the thread.
#include "server/wall_clock_watch.h"

#include <grpc/support/time.h>
#include <grpcpp/alarm.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <limits>
#include <utility>

namespace longspan {
namespace {

// A timer that is due already would not wake the thread; this one is earlier than any other.
constexpr int64_t kAlarmDelayMs = 10;

}  // namespace

WallClockWatch::WallClockWatch(std::function<void()> on_jump)
    : on_jump_(std::move(on_jump)), fd_(::timerfd_create(CLOCK_REALTIME, TFD_CLOEXEC)) {
  if (fd_ < 0) return;
  itimerspec never{};
  never.it_value.tv_sec = std::numeric_limits<time_t>::max();
  if (::timerfd_settime(fd_, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, &never, nullptr) != 0) {
    return;
  }
  thread_ = std::thread([this] { Loop(); });
}

WallClockWatch::~WallClockWatch() {
  if (thread_.joinable()) {
    ending_.store(true);
    itimerspec soon{};
    soon.it_value.tv_nsec = 1;
    ::timerfd_settime(fd_, 0, &soon, nullptr);
    thread_.join();
  }
  if (fd_ >= 0) ::close(fd_);
}

void WallClockWatch::Loop() {
  while (!ending_.load()) {
    uint64_t num_expired = 0;
    if (::read(fd_, &num_expired, sizeof num_expired) >= 0 || errno == EINTR) continue;
    if (errno != ECANCELED) return;
    on_jump_();
  }
}

GrpcTimerWaker::GrpcTimerWaker() = default;
GrpcTimerWaker::~GrpcTimerWaker() = default;

void GrpcTimerWaker::Wake() {
  alarm_ = std::make_unique<grpc::Alarm>();
  const gpr_timespec delay = gpr_time_from_millis(kAlarmDelayMs, GPR_TIMESPAN);
  alarm_->Set(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), delay), [](bool) {});
}

}  // namespace longspan
