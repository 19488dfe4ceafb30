// SPDX-License-Identifier: Apache-2.0
#include "launch/runners/one_machine.hpp"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/env/parse.hpp"
#include "launch/plan/machine_placement.hpp"
#include "launch/rendezvous/job_coordinator.hpp"
#include "launch/rendezvous/rendezvous.hpp"
#include "launch/run/file_limit.hpp"
#include "launch/run/port.hpp"
#include "launch/run/restart_policy.hpp"

namespace accelerate::launch {
namespace {

JoinRequest join_request_of(const MachinePlacement& place, int64_t restarts, std::chrono::milliseconds hang,
                            const env::Variables& variables) {
  return {.version = ACCELERATE_VERSION,
          .job_id = env::find(variables, "ACCELERATE_JOB_ID").value_or(""),
          .host = base::host_name(),
          .machine = place.machine_rank,
          .machines = place.machines(),
          .processes = place.world_size(),
          .ranks = fmt::format("{}", fmt::join(place.ranks_of_machine, ",")),
          .restarts = restarts,
          .hang_ms = hang.count()};
}

/// One restart attempt of the ranks of all machines.
///
/// \param wiring  Without port and job id, which the machines determine during rendezvous.
JobResult start(const LaunchOptions& options, const Machine& machine, const env::Variables& variables,
                const RendezvousOptions& invitation, LaunchContext wiring, SuperviseOptions supervised,
                JobCoordinatorOptions bond) {
  RendezvousResult gathered = rendezvous(invitation);
  wiring.port = gathered.welcome.port;
  wiring.job_id = gathered.welcome.job_id;
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) fail_to_open("pipe");
  const base::FileDescriptor failures(ends[0]);
  const base::FileDescriptor announce_to(ends[1]);
  int termination_signal = 0;
  supervised.termination_signal = &termination_signal;
  supervised.failures = announce_to.get();
  bond.failures = failures.get();
  std::array<int, 2> hang_ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, hang_ends.data()) != 0) {
    fail_to_open("socketpair");
  }
  const base::FileDescriptor to_guardian(hang_ends[0]);
  const base::FileDescriptor to_bond(hang_ends[1]);
  bond.hang = to_guardian.get();
  supervised.hang_detector = to_bond.get();
  return run_coordinated(std::move(gathered), invitation.own, bond, [&] {
    const int code = supervise(plan(options, machine, variables, wiring), supervised);
    return LocalResult{.exit_code = code, .was_signalled = termination_signal != 0};
  });
}

}  // namespace

void check_backend(const LaunchOptions& options, int64_t machines) {
  if (machines == 1 || options.settings.backend != "mpi") return;
  fail(ErrorKind::usage,
       "--backend mpi on {} machines is started by mpirun (--mpirun_hostfile FILE) or by srun; gloo works without",
       machines);
}

int run_one_machine(const LaunchOptions& options, const Machine& machine, const env::Variables& variables,
                    std::chrono::milliseconds timeout, const SuperviseOptions& supervise_options) {
  using Clock = std::chrono::steady_clock;
  const MachinePlacement place = place_of(options, machine);
  check_backend(options, place.machines());
  const int64_t max_restarts = value_of(options, &LaunchOptions::max_restarts);
  const RendezvousOptions invitation{.address = *options.main_process_ip,
                                     .port = value_of(options, &LaunchOptions::main_process_port),
                                     .own = join_request_of(place, max_restarts, supervise_options.hang, variables),
                                     .timeout = timeout};
  // A launcher that started all machines may already be in a later attempt.
  LaunchContext wiring{.address = *options.main_process_ip};
  if (const auto termination_signal = import_start(variables)) {
    wiring.restart_count = termination_signal->restart_count;
    wiring.max_restarts = termination_signal->max_restarts;
  }
  std::vector<FailedAttempt> failed;
  while (true) {
    const auto begun = Clock::now();
    const auto decide_here = [&](const std::string& cause) {
      const auto lasted = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begun);
      failed.push_back({.cause = cause, .lasted = lasted});
      return decide(failed, {.max_restarts = max_restarts});
    };
    const auto [code, again] =
        start(options, machine, variables, invitation, wiring, supervise_options,
              {.resume_code = supervise_options.resume_code, .decide = decide_here, .may_restart = max_restarts > 0});
    if (!again) return code;
    std::this_thread::sleep_for(*again);
    ++wiring.restart_count;
  }
}

}  // namespace accelerate::launch
