// SPDX-License-Identifier: Apache-2.0
// What is typed at the launcher's terminal, on its way to rank 0.
#pragma once

#include <poll.h>

#include <csignal>

#include "accelerate/base/file_descriptor.hpp"

namespace accelerate::launch {

/// Rank 0 is in a process group of its own, and those may not read a terminal: the launcher reads for it, while its own
/// group may, and nobody else drives the terminal. A line goes on when rank 0 has read the last one; the rest stays in
/// the terminal, for a shell or the next start. Nothing here waits, and nothing stops us (SIGTTIN).
class TerminalInput {
 public:
  /// wanted   false: nothing is read, as where stdin is not the terminal of this session
  /// Throws LaunchError (1) where the system gives no pipe.
  explicit TerminalInput(bool wanted);
  ~TerminalInput();
  TerminalInput(const TerminalInput&) = delete;
  TerminalInput& operator=(const TerminalInput&) = delete;

  /// In the process that starts rank 0: what it shall read; holds nothing where nothing is read.
  base::FileDescriptor take_end_of_rank();
  /// In the one that reads the terminal, after the fork.
  void keep_our_end() { theirs_.reset(); }

  /// Fills what poll() has to look at; returns how long it may wait, in milliseconds (-1: for ever).
  int watch(pollfd& terminal, pollfd& pipe);
  /// After poll().
  void serve(const pollfd& terminal, const pollfd& pipe);

 private:
  [[nodiscard]] bool may_read();
  void pass_on();
  void end();

  base::FileDescriptor terminal_;
  base::FileDescriptor ours_;
  base::FileDescriptor theirs_;
  bool full_ = false;  // rank 0 has not read all that it was given
  sigset_t before_{};
};

}  // namespace accelerate::launch
