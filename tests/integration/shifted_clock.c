// Preloaded into a server under test: its wall clock is the system's plus so many seconds, which
// the test changes while the server runs. Monotonic time is left alone. What the kernel does after
// a real jump is emulated: waits of futexes until a wall-clock time, which Abseil and with it
// gRPC's timers use, end when the shifted clock says so, and a timer that is cancelled by a jump
// is. (Debian's faketime knows neither: with it gRPC would sleep until an hour that the kernel has
// not reached.) Condition variables on the wall clock are left alone; only the allocator's purging
// thread has one.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum {
  kSliceMilliseconds = 5,
  kSliceNanoseconds = kSliceMilliseconds * 1000 * 1000
};  // how late one hears of a jump

typedef long (*Syscall)(long, long, long, long, long, long, long);

static const int64_t kNoShift = 0;
static const volatile int64_t* shift_seconds =
    &kNoShift;  // the first 8 bytes of the file in SHIFTED_CLOCK_FILE

static volatile int jump_timer =
    -1;  // the descriptor of the timer that a jump cancels; one a process

static Syscall RealSyscall(void) {
  static Syscall real;
  if (real == NULL) real = (Syscall)dlsym(RTLD_NEXT, "syscall");
  return real;
}

static int RealClock(clockid_t clock, struct timespec* time) {
  return (int)RealSyscall()(SYS_clock_gettime, clock, (long)time, 0, 0, 0, 0);
}

__attribute__((constructor)) static void MapShift(void) {
  const char* path = getenv("SHIFTED_CLOCK_FILE");
  const int fd = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0) abort();
  void* page = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED) abort();
  close(fd);
  shift_seconds = page;
}

int clock_gettime(clockid_t clock, struct timespec* time) {
  const int result = RealClock(clock, time);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    time->tv_sec += *shift_seconds;
  return result;
}

int gettimeofday(struct timeval* time, void* zone) {
  (void)zone;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  time->tv_sec = now.tv_sec;
  time->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != NULL) *out = now.tv_sec;
  return now.tv_sec;
}

// Until the shifted clock reaches the deadline, in slices of real time.
static long WaitShifted(long address, long operation, long value, const struct timespec* deadline,
                        long bits) {
  for (;;) {
    struct timespec now;
    RealClock(CLOCK_REALTIME, &now);
    const int64_t left = (deadline->tv_sec - *shift_seconds - now.tv_sec) * INT64_C(1000000000) +
                         (deadline->tv_nsec - now.tv_nsec);
    if (left <= 0) {
      errno = ETIMEDOUT;
      return -1;
    }
    now.tv_nsec += left < kSliceNanoseconds ? left : kSliceNanoseconds;
    if (now.tv_nsec >= 1000000000) {
      now.tv_nsec -= 1000000000;
      ++now.tv_sec;
    }
    const long result = RealSyscall()(SYS_futex, address, operation, value, (long)&now, 0, bits);
    if (result == 0 || errno != ETIMEDOUT) return result;
  }
}

long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long a[6];
  for (int i = 0; i < 6; ++i) a[i] = va_arg(list, long);
  va_end(list);
  const long wall_clock_wait = FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME;
  if (number == SYS_futex && (a[1] & ~(long)FUTEX_PRIVATE_FLAG) == wall_clock_wait && a[3] != 0) {
    return WaitShifted(a[0], a[1], a[2], (const struct timespec*)a[3], a[5]);
  }
  return RealSyscall()(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

int timerfd_settime(int fd, int flags, const struct itimerspec* value, struct itimerspec* old) {
  if (flags & TFD_TIMER_CANCEL_ON_SET) jump_timer = fd;
  return (int)RealSyscall()(SYS_timerfd_settime, fd, flags, (long)value, (long)old, 0, 0);
}

ssize_t read(int fd, void* data, size_t size) {
  const int64_t before = *shift_seconds;
  struct pollfd wait = {fd, POLLIN, 0};
  while (fd == jump_timer && poll(&wait, 1, kSliceMilliseconds) == 0) {
    if (*shift_seconds == before) continue;
    errno = ECANCELED;
    return -1;
  }
  return RealSyscall()(SYS_read, fd, (long)data, (long)size, 0, 0, 0);
}
