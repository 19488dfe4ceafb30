// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <initializer_list>
#include <vector>

namespace accelerate::job {

/// Exit code with which a program, after a stop request and a saved checkpoint, requests a restart: EX_TEMPFAIL of
/// <sysexits.h>.
inline constexpr int resume_exit_code = 75;

/// Detects preemption: SIGTERM (from a launcher, or a cluster that reclaims its machine) and SIGUSR1 (Slurm's --signal,
/// some time before the end). During its lifetime these signals do not end the process; the program polls requested()
/// between steps. requested() is thread-safe.
class PreemptionGuard {
 public:
  /// \param signals  Signals that announce the preemption.
  /// \throws Error (usage) if a guard already exists in this process.
  explicit PreemptionGuard(std::initializer_list<int> signals = {SIGTERM, SIGUSR1});
  /// Restores the previous signal handlers.
  ~PreemptionGuard();
  PreemptionGuard(const PreemptionGuard&) = delete;
  PreemptionGuard& operator=(const PreemptionGuard&) = delete;

  /// True if this process has received a signal. Other ranks may receive it at another time; agree on it with
  /// set_trigger() and check_trigger().
  [[nodiscard]] bool requested() const;

 private:
  struct PreviousAction {
    int signal;
    struct sigaction action;
  };
  std::vector<PreviousAction> before_;
};

}  // namespace accelerate::job
