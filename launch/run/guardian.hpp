// SPDX-License-Identifier: Apache-2.0
// The process between launcher and workers: whichever of the three is killed, the other two see to the rest.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>

#include "accelerate/base/file_descriptor.hpp"
#include "launch/run/outcome.hpp"

namespace accelerate::launch {

/// A child of this process, with a process group of its own, that carries something out and tells how it ended. It is
/// the sub-reaper of what it starts. A new one for each start of the workers also serves them MPI: libpmix works once
/// per process.
class Guardian {
 public:
  /// Forks. What is open and will be executed over goes with it; destructors of the caller's do not run there.
  ///
  /// work   in the child; launcher_gone is readable at its end of file: when the launcher is no more
  /// Throws LaunchError (1) when the system starts no process.
  explicit Guardian(const std::function<Outcome(int launcher_gone)>& work);
  /// Kills it if it still runs. What it started is then for whoever is this process's sub-reaper.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  /// Readable when outcome() will not wait any more.
  [[nodiscard]] int fd() const noexcept { return outcome_.get(); }
  void tell(int number) const;
  /// Waits for its end. Where it was killed before it could tell: nothing, and status() says how.
  std::optional<Outcome> outcome();
  /// From waitpid, after outcome().
  [[nodiscard]] int status() const noexcept { return status_; }

 private:
  pid_t pid_ = -1;
  int status_ = 0;
  bool runs_ = true;
  base::FileDescriptor lifeline_;  // closed by the system when we are killed
  base::FileDescriptor outcome_;
};

}  // namespace accelerate::launch
