// SPDX-License-Identifier: Apache-2.0
// Processes that workers left behind. A sub-reaper becomes the parent of every orphaned descendant, even one with its
// own session or a double fork. If no child is left, no process of the job is left.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <vector>

namespace accelerate::launch {

/// Makes this process the sub-reaper of its descendants during its lifetime.
class SubReaper {
 public:
  SubReaper();
  ~SubReaper();
  SubReaper(const SubReaper&) = delete;
  SubReaper& operator=(const SubReaper&) = delete;

 private:
  int before_ = 0;
};

/// Returns the current children of this process, including ended children that have not been reaped.
std::set<pid_t> children();

class Orphans {
 public:
  /// \param not_ours  Children of this process that do not belong to the job.
  explicit Orphans(std::set<pid_t> not_ours = {}) : not_ours_(std::move(not_ours)) {}

  /// Reaps the orphans that have ended and returns those that still run.
  std::vector<pid_t> living() const;
  /// Signals every orphan that this object has not signalled yet. The end of an orphan can create further orphans.
  void signal_once(int number);
  /// Sends SIGKILL to the orphans and their descendants until none is left, for at most one second (a process of
  /// another user, or one blocked in the kernel, cannot be killed). \returns "" or one line that names the remaining
  /// processes.
  [[nodiscard]] std::string end() const;

 private:
  std::set<pid_t> not_ours_;
  std::set<pid_t> signalled_;
};

}  // namespace accelerate::launch
