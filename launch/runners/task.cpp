// SPDX-License-Identifier: Apache-2.0
#include "launch/runners/task.hpp"

#include <utility>

#include "accelerate/env/parse.hpp"
#include "launch/plan/cpu_affinity.hpp"
#include "launch/run/supervise.hpp"
#include "launch/runners/forwarded_environment.hpp"

namespace accelerate::launch {
namespace {

/// Options of the per-rank wrapper.
LaunchOptions is_rank_wrapper(const LaunchOptions& options) {
  LaunchOptions around{.enable_cpu_affinity = options.enable_cpu_affinity,
                       .log_dir = options.log_dir,
                       .tee = options.tee,
                       .redirects = options.redirects,
                       .local_ranks_filter = options.local_ranks_filter,
                       .label = options.label,
                       .quiet = options.quiet,
                       .resume_code = options.resume_code,
                       .hang_timeout = options.hang_timeout,
                       .grace_time = options.grace_time};
  around.settings.debug = options.settings.debug;
  return around;
}

}  // namespace

bool needs_rank_wrapper(const LaunchOptions& options) {
  return options.log_dir || options.local_ranks_filter || options.label.value_or(false) || options.hang_timeout ||
         options.enable_cpu_affinity.value_or(false) || options.settings.debug.value_or(false);
}

std::vector<std::string> rank_wrapper_arguments(const LaunchOptions& options, const std::string& self) {
  std::vector<std::string> words;
  if (!self.empty()) {
    words = {self, kTaskFlag};
    const auto around = arguments_of(is_rank_wrapper(options));
    words.insert(words.end(), around.begin(), around.end());
    words.emplace_back("--");
  }
  words.insert(words.end(), options.command.begin(), options.command.end());
  return words;
}

std::vector<int> processors_of_task(const env::Variables& variables, const Machine& machine) {
  const auto bound = env::find(variables, "SLURM_CPU_BIND_TYPE").value_or("none");
  if (bound != "none") return {};
  const auto place = env::read_process_env(variables);
  return assign_processors(machine.processors, place.local_world_size).at(static_cast<size_t>(place.local_rank));
}

int run_task(WorkerPlan worker, const LaunchOptions& options) {
  if (options.enable_cpu_affinity.value_or(false)) {
    worker.processors = processors_of_task(worker.environment, this_machine(worker.environment));
  }
  return supervise({.runner = Runner::task, .workers = {std::move(worker)}}, supervise_options(options));
}

int run_task(const LaunchOptions& options) {
  auto variables = env::current_variables();
  // Launchers that are older than this check do not set the variable.
  if (const auto version = env::find(variables, kLauncherVersionVariable)) check_version(*version);
  const auto place = env::read_process_env(variables);
  set_for_ranks(variables, options);
  return run_task({.rank = place.rank,
                   .local_rank = place.local_rank,
                   .command = options.command,
                   .environment = std::move(variables)},
                  options);
}

}  // namespace accelerate::launch
