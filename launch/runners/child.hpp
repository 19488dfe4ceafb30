// SPDX-License-Identifier: Apache-2.0
// A child of a relay or an agent: a pipe is its stdin, its output is ours.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "accelerate/base/file_descriptor.hpp"

namespace accelerate::launch {

class PipedChild {
 public:
  /// program     looked for in PATH unless it has a slash
  /// variables   "NAME=value"
  /// death       the signal that it gets when this process dies
  /// Throws LaunchError (1) where it cannot be started.
  PipedChild(const std::string& program, std::vector<std::string> arguments, std::vector<std::string> variables,
             int death);
  /// Kills it where it still runs.
  ~PipedChild();
  PipedChild(const PipedChild&) = delete;
  PipedChild& operator=(const PipedChild&) = delete;

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  void tell(int signal) const;
  /// Its exit code (128 + signal), -1 while it runs.
  int exit_code();

  /// Bytes for its stdin, written when it reads.
  void send(std::string_view bytes);
  /// No more will come.
  void end_input();
  void flush();
  /// To wait for with POLLOUT; -1 where nothing waits.
  [[nodiscard]] int wants_to_write() const noexcept { return waiting_.empty() ? -1 : input_.get(); }
  [[nodiscard]] size_t waiting() const noexcept { return waiting_.size(); }

 private:
  pid_t pid_ = -1;
  base::FileDescriptor input_;
  std::string waiting_;
  bool ends_ = false;
};

}  // namespace accelerate::launch
