// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>

namespace accelerate::launch {

/// A signal that is for the ranks and does not ask them to end: batch systems announce the end of the time with it.
inline bool is_notice(int number) { return number == SIGUSR1 || number == SIGUSR2; }

/// SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 come through a descriptor while this lives, instead
/// of interrupting the thread that made it. Ignored ones (nohup) stay ignored, and so is SIGPIPE: writes say it.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  /// Readable when next() has one.
  [[nodiscard]] int fd() const noexcept { return fd_; }
  /// The next signal, 0 when there is none.
  [[nodiscard]] int next() const;

 private:
  int fd_ = -1;
  sigset_t before_{};
  struct sigaction pipe_before_ {};
};

}  // namespace accelerate::launch
