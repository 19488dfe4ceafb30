// SPDX-License-Identifier: Apache-2.0
#include "launch/run/supervise.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launch/run/failure_report.hpp"
#include "launch/run/guardian.hpp"
#include "launch/run/job_folders.hpp"
#include "launch/run/orphans.hpp"
#include "launch/run/output_sink.hpp"
#include "launch/run/signals.hpp"
#include "launch/run/spawn.hpp"
#include "launch/run/terminal_input.hpp"
#include "launch/run/worker_group.hpp"

namespace accelerate::launch {
namespace {

using Clock = std::chrono::steady_clock;

void check_program(const LaunchPlan& plan) {
  if (plan.workers.empty()) return;
  const auto& first = plan.workers.front();
  static_cast<void>(find_program(first.command.front(), first.environment));
}

/// On several hosts rank 0 may run elsewhere, and mpirun and srun forward their own stdin.
bool can_read_terminal(const LaunchPlan& plan) {
  return plan.runner == Runner::local && plan.machines == 1 && !plan.workers.empty();
}

/// The launcher's side of a job: forwards signals and decides about restarts.
class Supervisor {
 public:
  Supervisor(const PlanOf& plan_of, const SuperviseOptions& options)
      : plan_of_(plan_of), options_(options), err_(options.err, "stderr") {}
  /// Waits for a slow reader, so that the last message is written too.
  ~Supervisor() {
    const auto until = Clock::now() + options_.reader_grace;
    while (!err_.empty() && Clock::now() < until) {
      pollfd room{.fd = err_.fd(), .events = POLLOUT, .revents = 0};
      poll(&room, 1, 10);
      err_.flush();
    }
  }
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  int run() {
    while (true) {
      const auto begun = Clock::now();
      const AttemptResult outcome = start(static_cast<int64_t>(failed_.size()));
      throw_if_refused(outcome);
      // A sender of a notice signal (the end of the allocated time is near) does not want a restart within that time.
      if (outcome.restart_requested && (termination_signal_ != 0 || noticed_ != 0)) {
        return return_to_caller(outcome.exit_code);
      }
      if (outcome.cause.empty() || termination_signal_ != 0) return outcome.exit_code;
      const auto lasted = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begun);
      failed_.push_back({.cause = outcome.cause, .lasted = lasted, .restart_requested = outcome.restart_requested});
      const auto decision = decide(failed_, options_.restarts);
      err_.add(decision.line);
      if (!decision.after) return outcome.exit_code;
      const int number = wait(*decision.after, outcome.restart_requested);
      if (number != 0) return outcome.restart_requested ? exit_with(number, outcome.exit_code) : 128 + number;
    }
  }

 private:
  AttemptResult start(int64_t restart) {
    noticed_ = 0;
    const LaunchPlan plan = plan_of_(restart);
    check_program(plan);
    const JobFolderPlaces places;
    const Orphans orphans(children());
    TerminalInput typed(can_read_terminal(plan));
    Guardian guardian([&](int launcher_gone) {
      auto input = typed.take_rank_end();
      const bool mpirun_here = plan.runner == Runner::mpirun && plan.machines == 1;
      const JobFolders folders(places, plan.serve_mpi || mpirun_here);
      return run_worker_group(plan, options_, folders, launcher_gone, std::move(input));
    });
    typed.keep_read_end();
    while (!ended(guardian, typed)) {
    }
    if (auto outcome = guardian.outcome()) return *outcome;
    // Without its guardian, the system killed the workers. This process is now the parent of their orphans.
    err_.add(orphans.end());
    places.remove();
    err_.add(fmt::format("accelerate_launch: its guardian (pid {}) ended with {}; the ranks were stopped\n",
                         guardian.pid(), wait_status_text(guardian.status())));
    return {.exit_code = exit_code_of(guardian.status())};
  }

  int return_to_caller(int exit_code) {
    err_.add(
        fmt::format("accelerate_launch: the ranks ended with exit code {} after signal {} was forwarded; they request "
                    "a restart\n",
                    exit_code, termination_signal_ != 0 ? termination_signal_ : noticed_));
    return exit_code;
  }

  /// The same for a signal that arrived while no rank ran.
  int exit_with(int number, int exit_code) {
    err_.add(
        fmt::format("accelerate_launch: signal {} arrived after the ranks had ended with exit code {}; they request "
                    "a restart\n",
                    number, exit_code));
    return exit_code;
  }

  /// Forwards signals and typed input. Returns true when the guardian has sent its outcome or has died.
  bool ended(const Guardian& guardian, TerminalInput& typed) {
    std::array<pollfd, 4> waits{pollfd{.fd = signals_.fd(), .events = POLLIN, .revents = 0},
                                pollfd{.fd = guardian.fd(), .events = POLLIN, .revents = 0}};
    const int poll_timeout_ms = typed.watch(waits[2], waits[3]);
    poll(waits.data(), waits.size(), poll_timeout_ms);
    typed.serve(waits[2], waits[3]);
    while (const auto signal = signals_.next()) {
      if (signal->number == SIGCHLD || is_repeated_by_failed_rank(*signal)) continue;
      guardian.send_signal(signal->number);
      (is_notice(signal->number) ? noticed_ : termination_signal_) = signal->number;
      if (options_.termination_signal != nullptr) *options_.termination_signal = termination_signal_;
    }
    return waits[1].revents != 0;
  }

  /// True if the signal repeats the first request and therefore must not kill. timeout(1) signals its child and then
  /// the process group that contains both. If the surrounding program (workers.cpp) dies of the same signal, the kernel
  /// sends another one. If another machine fails, this process signals itself (job_coordinator.cpp), and the agent that
  /// started it passes on the signal of the launcher of all machines.
  bool is_repeated_by_failed_rank(const Signal& signal) {
    constexpr std::chrono::milliseconds min_uptime{100};
    const auto now = Clock::now();
    const bool again = !is_notice(signal.number) && signal.number == last_.number && signal.sender == last_.sender &&
                       now - heard_at_ < min_uptime;
    const bool is_end_of_parent = termination_signal_ != 0 && signal.sender == parent_ && getppid() != parent_;
    const bool is_first_of_sender = !is_notice(signal.number) && senders_.insert(signal.sender).second;
    const bool is_failed_machine = termination_signal_ != 0 && is_first_of_sender && senders_.contains(getpid()) &&
                                   (signal.sender == parent_ || signal.sender == getpid());
    last_ = signal;
    heard_at_ = now;
    return again || is_end_of_parent || is_failed_machine;
  }

  /// \returns 0 when the time is over, otherwise the signal. A notice signal ends the wait only if notice_ends_it.
  int wait(std::chrono::milliseconds time, bool notice_ends_it) {
    const auto until = Clock::now() + time;
    for (auto left = time; left.count() > 0;
         left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now())) {
      pollfd clear_wakeup{.fd = signals_.fd(), .events = POLLIN, .revents = 0};
      poll(&clear_wakeup, 1, static_cast<int>(std::min<int64_t>(left.count() + 1, 60'000)));
      while (const auto signal = signals_.next()) {
        if (is_notice(signal->number) ? notice_ends_it : signal->number != SIGCHLD) return signal->number;
      }
    }
    return 0;
  }

  const PlanOf& plan_of_;
  const SuperviseOptions& options_;
  SubReaper reaper_;
  Signals signals_;
  Sink err_;
  std::vector<FailedAttempt> failed_;
  int noticed_ = 0;  // a signal to this attempt that does not request the end
  Signal last_{};
  Clock::time_point heard_at_{};
  std::set<pid_t> senders_;  // of requests to end
  const pid_t parent_ = getppid();
  int termination_signal_ = 0;  // a signal that requests the end; the guardian may have finished before it arrived
};

}  // namespace

int supervise(const PlanOf& plan_of, const SuperviseOptions& options) { return Supervisor(plan_of, options).run(); }

int supervise(const LaunchPlan& plan, const SuperviseOptions& options) {
  return supervise([&](int64_t /*restart*/) { return plan; }, options);
}

}  // namespace accelerate::launch
