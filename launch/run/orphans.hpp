// SPDX-License-Identifier: Apache-2.0
// Processes that workers left behind. As their sub-reaper we become the parent of each whose parent ended, however it
// hid itself (own session, forked twice): no child left means nothing left.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <vector>

namespace accelerate::launch {

/// While it lives this process is the sub-reaper of its descendants.
class SubReaper {
 public:
  SubReaper();
  ~SubReaper();
  SubReaper(const SubReaper&) = delete;
  SubReaper& operator=(const SubReaper&) = delete;

 private:
  int before_ = 0;
};

/// The children of this process now, ended ones that nobody reaped too.
std::set<pid_t> children();

class Orphans {
 public:
  /// not_ours   children of this process that are somebody else's concern
  explicit Orphans(std::set<pid_t> not_ours = {}) : not_ours_(std::move(not_ours)) {}

  /// Takes leave of those that ended, and returns those that live.
  std::vector<pid_t> living() const;
  /// Sends a signal to those that have not had it from here: each that ends may leave others in turn.
  void tell_once(int number);
  /// SIGKILL for them and for what they leave in turn, until none lives or a second is over (a process that belongs to
  /// another user, or that hangs in the system).
  /// returns   "" or a line that names who could not be ended
  [[nodiscard]] std::string end() const;

 private:
  std::set<pid_t> not_ours_;
  std::set<pid_t> told_;
};

}  // namespace accelerate::launch
