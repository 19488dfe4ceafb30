// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <csignal>
#include <optional>

#include "accelerate/base/file_descriptor.hpp"

namespace accelerate::launch {

/// True for signals that are forwarded to the ranks without requesting their end. Batch systems use them to announce
/// the end of the allocated time.
inline bool is_notice(int number) { return number == SIGUSR1 || number == SIGUSR2; }

struct Signal {
  int number = 0;
  pid_t sender = -1;  ///< for SIGCHLD, the first child that ended since the previous SIGCHLD
};

/// Delivers SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 through a descriptor during its lifetime,
/// instead of interrupting the constructing thread. Ignored signals (nohup) stay ignored. SIGPIPE and SIGXFSZ (file
/// size limit) are ignored, because write() reports those errors. SIGCHLD is always enabled: if it were ignored, the
/// system would discard the exit status of children.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  /// Readable if next() has a signal.
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  /// Returns the next signal, or nothing.
  [[nodiscard]] std::optional<Signal> next() const;

 private:
  base::FileDescriptor fd_;
  sigset_t before_{};
  struct sigaction pipe_before_ {};
  struct sigaction file_size_before_ {};
  struct sigaction child_before_ {};
};

}  // namespace accelerate::launch
