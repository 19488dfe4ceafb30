// SPDX-License-Identifier: Apache-2.0
// A child of a relay or an agent: its stdin is a pipe, its output is inherited.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "accelerate/base/file_descriptor.hpp"

namespace accelerate::launch {

class PipedChild {
 public:
  /// \param program    Searched in PATH unless it contains a slash.
  /// \param variables  Environment as "NAME=value".
  /// \param death      Signal that the child receives when this process dies.
  /// \throws LaunchError (1) if the program cannot be started.
  PipedChild(const std::string& program, std::vector<std::string> arguments, std::vector<std::string> variables,
             int death);
  /// Kills the child if it still runs.
  ~PipedChild();
  PipedChild(const PipedChild&) = delete;
  PipedChild& operator=(const PipedChild&) = delete;

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  void send_signal(int signal) const;
  /// Exit code (128 + signal for a signal), or -1 while the child runs.
  int exit_code();

  /// Queues bytes for the child's stdin.
  void send(std::string_view bytes);
  /// Closes the child's stdin.
  void end_input();
  void flush();
  /// Descriptor to poll with POLLOUT, or -1 if no data is pending.
  [[nodiscard]] int wants_to_write() const noexcept { return waiting_.empty() ? -1 : input_.get(); }
  [[nodiscard]] size_t waiting() const noexcept { return waiting_.size(); }

 private:
  pid_t pid_ = -1;
  base::FileDescriptor input_;
  std::string waiting_;
  bool ends_ = false;
};

}  // namespace accelerate::launch
