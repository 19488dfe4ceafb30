// SPDX-License-Identifier: Apache-2.0
#include "accelerate/job/stop_notice.hpp"

#include <atomic>
#include <cerrno>
#include <cstring>

#include "accelerate/base/error.hpp"

namespace accelerate::job {
namespace {

std::atomic<bool> notice_came{false};
std::atomic<bool> notice_lives{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may write it");

/// Restores in reverse order: if a signal is listed twice, its first entry has the original handler.
template <typename All>
void restore(const All& before) {
  for (auto one = before.rbegin(); one != before.rend(); ++one) ::sigaction(one->signal, &one->action, nullptr);
}

void note(int) { notice_came.store(true, std::memory_order_relaxed); }

}  // namespace

StopNotice::StopNotice(std::initializer_list<int> signals) {
  if (notice_lives.exchange(true)) {
    base::fail(ErrorKind::usage, {}, "StopNotice",
               "there is one already, and signals go to one; let both parts of the "
               "program look at that one");
  }
  notice_came = false;
  for (const int signal : signals) {
    struct sigaction action {};
    action.sa_handler = note;
    action.sa_flags = SA_RESTART;
    Before before{signal, {}};
    if (::sigaction(signal, &action, &before.action) != 0) {
      const int error = errno;
      notice_lives = false;
      restore(before_);
      base::fail(ErrorKind::usage, {}, "StopNotice", "signal {} cannot be handled: {}", signal, std::strerror(error));
    }
    before_.push_back(before);
  }
}

StopNotice::~StopNotice() {
  restore(before_);
  notice_lives = false;
}

bool StopNotice::came() const { return notice_came.load(std::memory_order_relaxed); }

}  // namespace accelerate::job
