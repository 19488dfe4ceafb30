// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <csignal>
#include <optional>

#include "accelerate/base/file_descriptor.hpp"

namespace accelerate::launch {

/// A signal that is for the ranks and does not ask them to end: batch systems announce the end of the time with it.
inline bool is_notice(int number) { return number == SIGUSR1 || number == SIGUSR2; }

struct Signal {
  int number = 0;
  pid_t sender = -1;  ///< SIGCHLD: the child that ended; the first of them, where several ended since the last SIGCHLD
};

/// SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 come through a descriptor while this lives, instead
/// of interrupting the thread that made it. Ignored ones (nohup) stay ignored, and so are SIGPIPE and SIGXFSZ (a limit
/// of file sizes): writes say it. Only SIGCHLD is heard in any case: ignored, the system would hide from us how
/// children end.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  /// Readable when next() has one.
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  /// The next signal, if there is one.
  [[nodiscard]] std::optional<Signal> next() const;

 private:
  base::FileDescriptor fd_;
  sigset_t before_{};
  struct sigaction pipe_before_ {};
  struct sigaction file_size_before_ {};
  struct sigaction child_before_ {};
};

}  // namespace accelerate::launch
