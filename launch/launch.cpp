// SPDX-License-Identifier: Apache-2.0
#include "launch/launch.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "accelerate/env/config_file.hpp"
#include "accelerate/env/process_env.hpp"
#include "launch/plan/choose.hpp"
#include "launch/plan/machine.hpp"
#include "launch/plan/output_options.hpp"
#include "launch/plan/plan.hpp"
#include "launch/plan/resolve.hpp"
#include "launch/plan/shell.hpp"
#include "launch/pmix/server.hpp"
#include "launch/run/job_id.hpp"
#include "launch/run/port.hpp"
#include "launch/run/supervise.hpp"
#include "launch/runners/machine.hpp"
#include "launch/runners/table.hpp"

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
  if (!options.quiet.value_or(false)) {
    fmt::print(stderr, "accelerate_launch: {}; the ranks use gloo, which is slower than mpi on one machine\n",
               *why_not);
  }
  return false;
}

env::Config read_config(const LaunchOptions& options, const env::Variables& variables) {
  return options.config_file ? env::read_config_file(*options.config_file, "--config_file")
                             : env::read_config(variables);
}

void say(const std::optional<std::string>& line) {
  if (line) fmt::print(stderr, "accelerate_launch: {}\n", *line);
}

/// Prints what would be started; nothing is, and no port is kept.
int dry_run(const LaunchOptions& options, const Machine& machine, const env::Variables& variables) {
  const bool any_port = options.main_process_port == 0;
  const int64_t port = any_port ? ReservedPort(0).number() : options.main_process_port.value_or(default_port);
  const Wiring wiring{.address = options.main_process_ip.value_or(Wiring{}.address),
                      .port = port,
                      .serve_mpi = decide_mpi(options, machine)};
  const auto folder = std::filesystem::current_path().string();
  fmt::print("{}", as_script(plan(options, machine, variables, wiring), variables, folder));
  return 0;
}

/// Leaves the ranks to another runner.
int elsewhere(Runner runner, const Call& call) {
  if (!call.options.dry_run) return run(runner, call);
  fmt::print("{}", as_script(*plan_of(runner, call), call.variables, std::filesystem::current_path().string()));
  return 0;
}

}  // namespace

int launch(const LaunchOptions& given) {
  const auto variables = env::current_variables();
  const auto [resolved, timeout, conflicts] = resolve(given, variables, read_config(given, variables));
  const auto note = [quiet = resolved.quiet.value_or(false)](const std::optional<std::string>& line) {
    if (!quiet) say(line);
  };
  for (const auto& conflict : conflicts) note(conflict);
  const Runner runner = choose_runner(resolved, variables);
  if (runner != Runner::local) {
    return elsewhere(runner, {.options = resolved,
                              .variables = variables,
                              .timeout = timeout,
                              .supervise_options = {.grace = resolved.grace_time.value_or(SuperviseOptions{}.grace)}});
  }
  const LaunchOptions options = with_slurm_place(resolved, variables);
  const auto machine = this_machine(variables, options.gpu_ids == "all" ? std::nullopt : options.gpu_ids);
  check_gpus(options, machine);
  const auto output = output_options(options);
  note(what_was_chosen(options, machine));
  if (options.dry_run) return dry_run(options, machine, variables);
  note(too_many_for_the_processors(options, machine));
  if (options.num_machines.value_or(1) > 1) {
    return run_one_machine(options, machine, variables, timeout,
                           {.grace = options.grace_time.value_or(SuperviseOptions{}.grace),
                            .hang = options.hang_timeout.value_or(SuperviseOptions{}.hang),
                            .output = output});
  }
  const bool serve_mpi = decide_mpi(options, machine);
  std::optional<ReservedPort> port;
  const auto plan_of = [&, &options = options](int64_t restart) {
    port.reset();
    port.emplace(restart == 0 ? options.main_process_port : options.main_process_port.value_or(0));
    if (port->moved()) note(port_moved(port->number()));
    return plan(options, machine, variables,
                {.port = port->number(), .serve_mpi = serve_mpi, .job_id = random_job_id(), .restart_count = restart});
  };
  // Ranks that wait in MPI's start give up at the timeout in words of their own; two seconds later we do.
  return supervise(plan_of, {.grace = options.grace_time.value_or(SuperviseOptions{}.grace),
                             .mpi_start = timeout + std::chrono::seconds(2),
                             .hang = options.hang_timeout.value_or(SuperviseOptions{}.hang),
                             .restarts = {.max_restarts = options.max_restarts.value_or(0)},
                             .output = output});
}

}  // namespace accelerate::launch
