// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <initializer_list>
#include <vector>

namespace accelerate::job {

/// What a program ends with that was told to stop, saved a checkpoint and would like to be started again: EX_TEMPFAIL
/// of <sysexits.h>.
inline constexpr int resume_exit_code = 75;

/// Hears that the job is to end: SIGTERM (a launcher, a cluster that takes its machine back) and SIGUSR1 (Slurm's
/// --signal, some time before the end). While it lives these signals end nothing; the program looks at came() between
/// steps. One at a time in a process.
class StopNotice {
 public:
  explicit StopNotice(std::initializer_list<int> signals = {SIGTERM, SIGUSR1});
  /// The signals do again what they did before.
  ~StopNotice();
  StopNotice(const StopNotice&) = delete;
  StopNotice& operator=(const StopNotice&) = delete;

  /// To this process; other ranks may hear of it earlier or later: agree by set_trigger() and check_trigger().
  [[nodiscard]] bool came() const;

 private:
  struct Before {
    int signal;
    struct sigaction action;
  };
  std::vector<Before> before_;
};

}  // namespace accelerate::job
