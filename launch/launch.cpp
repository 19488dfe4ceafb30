// SPDX-License-Identifier: Apache-2.0
#include "launch/launch.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <optional>

#include "accelerate/env/config_file.hpp"
#include "accelerate/env/process_env.hpp"
#include "launch/plan/machine.hpp"
#include "launch/plan/plan.hpp"
#include "launch/plan/resolve.hpp"
#include "launch/plan/runner_selection.hpp"
#include "launch/pmix/server.hpp"
#include "launch/run/spawn.hpp"
#include "launch/runners/runner_table.hpp"

namespace accelerate::launch {
namespace {

env::Config read_config(const LaunchOptions& options, const env::Variables& variables) {
  return options.config_file ? env::read_config_file(*options.config_file, "--config_file")
                             : env::read_config(variables);
}

/// If MPI is requested for local ranks and libpmix is missing, mpirun starts the ranks if it is installed.
std::optional<Runner> mpi_without_launcher(Runner runner, LaunchOptions& options, const RunnerContext& call) {
  if (runner != Runner::local || options.settings.backend != "mpi") return std::nullopt;
  const LaunchOptions placed = with_slurm_placement(options, call.variables);
  const bool alone = value_of(placed, &LaunchOptions::num_machines) == 1;
  if (!alone || !is_program("mpirun", call.variables)) return std::nullopt;
  const auto unavailable_reason = mpi_server_unavailable_reason();
  if (!unavailable_reason) return std::nullopt;
  call.note(fmt::format("{}; mpirun starts the ranks", *unavailable_reason));
  const Machine machine = this_machine(call.variables);
  if (placed.num_processes != options.num_processes) call.note(slurm_choice_text(tasks_of_job(call.variables)));
  call.note(chosen_ranks_text(placed, machine));
  options.num_processes = number_of_processes(placed, machine);
  return Runner::mpirun;
}

}  // namespace

void open_standard_streams() {
  int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  while (fd >= 0 && fd <= 2) fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (fd > 2) close(fd);
}

int launch(const LaunchOptions& given) {
  const auto variables = env::current_variables();
  auto resolved = resolve_options(given, variables, read_config(given, variables));
  auto& options = resolved.options;
  const RunnerContext call{.options = options, .variables = variables, .timeout = resolved.timeout};
  for (const auto& conflict : resolved.conflicts) call.note(conflict);
  Runner runner = choose_runner(options, variables);
  runner = mpi_without_launcher(runner, options, call).value_or(runner);
  if (!options.dry_run) return run_with(runner, call);
  fmt::print("{}", script_of(runner, call));
  return 0;
}

}  // namespace accelerate::launch
