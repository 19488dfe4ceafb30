// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>

namespace accelerate::launch {

/// SIGCHLD, SIGINT, SIGTERM and SIGHUP come through a descriptor while this lives, instead of interrupting the thread
/// that made it. Ignored ones (nohup) stay ignored, and so is SIGPIPE: writes say it.
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
