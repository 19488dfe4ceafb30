// SPDX-License-Identifier: Apache-2.0
// Forwards input from the launcher's terminal to rank 0.
#pragma once

#include <poll.h>

#include <csignal>

#include "accelerate/base/file_descriptor.hpp"

namespace accelerate::launch {

/// Rank 0 has its own process group, which cannot read the terminal. The launcher therefore reads for it while the
/// launcher is in the foreground and no other program controls the terminal. A line is forwarded after rank 0 has read
/// the previous one; further input stays in the terminal for a shell or the next attempt. No call blocks, and SIGTTIN
/// never stops this process.
class TerminalInput {
 public:
  /// \param wanted  If false, the terminal is not read; for example, stdin is not the terminal of this session.
  /// \throws LaunchError (1) if the system cannot create a pipe.
  explicit TerminalInput(bool wanted);
  ~TerminalInput();
  TerminalInput(const TerminalInput&) = delete;
  TerminalInput& operator=(const TerminalInput&) = delete;

  /// Call in the process that starts rank 0. Returns rank 0's stdin, or an empty descriptor if nothing is read.
  base::FileDescriptor take_rank_end();
  /// Call in the process that reads the terminal, after the fork.
  void keep_read_end() { theirs_.reset(); }

  /// Fills the poll() entries. Returns the poll() timeout in milliseconds, or -1 for no timeout.
  int watch(pollfd& terminal, pollfd& pipe);
  /// Call after poll().
  void serve(const pollfd& terminal, const pollfd& pipe);

 private:
  [[nodiscard]] bool may_read();
  void pass_on();
  void end();

  base::FileDescriptor terminal_;
  base::FileDescriptor ours_;
  base::FileDescriptor theirs_;
  bool full_ = false;  // true if rank 0 has not read all forwarded input
  sigset_t before_{};
};

}  // namespace accelerate::launch
