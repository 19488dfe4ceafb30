// SPDX-License-Identifier: Apache-2.0
// The process between launcher and workers. If one of the three is killed, the other two clean up.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>

#include "accelerate/base/file_descriptor.hpp"
#include "launch/run/attempt_result.hpp"

namespace accelerate::launch {

/// A child process with its own process group that runs one restart attempt and returns its outcome. It is the
/// sub-reaper of all processes it starts. Each restart attempt uses a new guardian, because libpmix works only once per
/// process.
class Guardian {
 public:
  /// Forks. The child inherits open descriptors. Destructors of the caller's objects do not run in the child.
  ///
  /// \param work  Runs in the child. `launcher_gone` becomes readable (end of file) when the launcher has died.
  /// \throws LaunchError (1) if the system cannot start a process.
  explicit Guardian(const std::function<AttemptResult(int launcher_gone)>& work);
  /// Kills the guardian if it still runs. This process's sub-reaper then inherits the guardian's children.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  /// Readable when outcome() will not block.
  [[nodiscard]] int fd() const noexcept { return outcome_.get(); }
  void send_signal(int number) const;
  /// Waits until the guardian ends. Returns nothing if it was killed before it could send an outcome; see status().
  std::optional<AttemptResult> outcome();
  /// Status from waitpid(), valid after outcome().
  [[nodiscard]] int status() const noexcept { return status_; }

 private:
  pid_t pid_ = -1;
  int status_ = 0;
  bool runs_ = true;
  base::FileDescriptor lifeline_;  // closed by the system if the launcher is killed
  base::FileDescriptor outcome_;
};

}  // namespace accelerate::launch
