// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/gloo/shared_counter.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace accelerate::comm {
namespace {

// A rank that is about to change the counter does so within this time, and waking a thread would take longer.
constexpr std::chrono::microseconds kSpinTime{20};
constexpr int kSpinsPerClockRead = 32;

void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

// The order of the two accesses here and in wait_for() is sequentially consistent, so either this thread sees the one
// that waits, or that one sees the new value.
void SharedCounter::set(uint32_t value) {
  value_.store(value);
  wake_waiting();
}

void SharedCounter::increment() {
  ++value_;
  wake_waiting();
}

void SharedCounter::wake_waiting() {
  if (waiting_.load() > 0) syscall(SYS_futex, &value_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool SharedCounter::wait_for(uint32_t value, std::chrono::nanoseconds at_most, bool spins) {
  if (has_reached(value)) return true;
  if (spins) {
    const auto end = std::chrono::steady_clock::now() + kSpinTime;
    do {
      for (int i = 0; i < kSpinsPerClockRead; ++i) {
        if (has_reached(value)) return true;
        pause_briefly();
      }
    } while (std::chrono::steady_clock::now() < end);
  }
  ++waiting_;
  const uint32_t seen = value_.load();
  if (static_cast<int32_t>(seen - value) < 0) {
    const auto whole = std::chrono::duration_cast<std::chrono::seconds>(at_most);
    const timespec limit{.tv_sec = whole.count(), .tv_nsec = (at_most - whole).count()};
    syscall(SYS_futex, &value_, FUTEX_WAIT, seen, &limit, nullptr, 0);
  }
  --waiting_;
  return has_reached(value);
}

}  // namespace accelerate::comm
