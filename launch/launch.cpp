// SPDX-License-Identifier: Apache-2.0
#include "launch/launch.hpp"

#include <fmt/format.h>

#include "accelerate/env/process_env.hpp"
#include "launch/plan/machine.hpp"
#include "launch/plan/plan.hpp"
#include "launch/plan/resolve.hpp"
#include "launch/pmix/server.hpp"
#include "launch/run/job_id.hpp"
#include "launch/run/port.hpp"
#include "launch/run/supervise.hpp"

namespace accelerate::launch {
namespace {

/// MPI's wire-up where it is wanted and can be had. It is the default of CPU ranks, so its absence is said and gloo is
/// used; asked for by name, its absence is an error.
bool decide_mpi(const LaunchOptions& options, const Machine& machine) {
  if (!wants_mpi(options, machine)) return false;
  const auto why_not = why_no_mpi_server();
  if (!why_not) return true;
  if (options.settings.backend) {
    fail(ErrorKind::environment, "backend mpi is asked for, but {}; backend gloo works without", *why_not);
  }
  fmt::print(stderr, "accelerate_launch: {}; the ranks use gloo, which is slower than mpi on one machine\n", *why_not);
  return false;
}

}  // namespace

int launch(const LaunchOptions& given) {
  const auto variables = env::current_variables();
  const auto [options, timeout, conflicts] = resolve(given, variables, env::read_config(variables));
  for (const auto& conflict : conflicts) fmt::print(stderr, "accelerate_launch: {}\n", conflict);
  const auto machine = this_machine(variables);
  check_gpus(options, machine);
  const ReservedPort port(options.main_process_port);
  const Wiring wiring{.port = port.number(), .serve_mpi = decide_mpi(options, machine), .job_id = random_job_id()};
  // Ranks that wait in MPI's start give up at the timeout in words of their own; two seconds later we do.
  return supervise(
      plan(options, machine, variables, wiring),
      {.grace = options.grace_time.value_or(SuperviseOptions{}.grace), .mpi_start = timeout + std::chrono::seconds(2)});
}

}  // namespace accelerate::launch
