// SPDX-License-Identifier: Apache-2.0
#include "accelerate/job/preemption.hpp"

#include <atomic>
#include <cerrno>
#include <cstring>

#include "accelerate/base/error.hpp"

namespace accelerate::job {
namespace {

std::atomic<bool> signal_received{false};
std::atomic<bool> guard_exists{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may write it");

/// Restores in reverse order: if a signal is listed twice, its first entry has the original handler.
template <typename All>
void restore(const All& before) {
  for (auto one = before.rbegin(); one != before.rend(); ++one) ::sigaction(one->signal, &one->action, nullptr);
}

void on_signal(int) { signal_received.store(true, std::memory_order_relaxed); }

}  // namespace

PreemptionGuard::PreemptionGuard(std::initializer_list<int> signals) {
  if (guard_exists.exchange(true)) {
    base::fail(ErrorKind::usage, {}, "PreemptionGuard",
               "another guard already exists, and only one receives the signals; use the same guard in both parts of "
               "the program");
  }
  signal_received = false;
  for (const int signal : signals) {
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    PreviousAction before{signal, {}};
    if (::sigaction(signal, &action, &before.action) != 0) {
      const int error = errno;
      guard_exists = false;
      restore(before_);
      base::fail(ErrorKind::usage, {}, "PreemptionGuard", "signal {} cannot be handled: {}", signal,
                 std::strerror(error));
    }
    before_.push_back(before);
  }
}

PreemptionGuard::~PreemptionGuard() {
  restore(before_);
  guard_exists = false;
}

bool PreemptionGuard::requested() const { return signal_received.load(std::memory_order_relaxed); }

}  // namespace accelerate::job
