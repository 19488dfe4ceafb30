// SPDX-License-Identifier: Apache-2.0
#include "launch/runners/srun.hpp"

#include <fmt/format.h>

#include "accelerate/env/launcher_variables.hpp"
#include "accelerate/env/parse.hpp"
#include "launch/plan/error.hpp"
#include "launch/runners/task.hpp"

namespace accelerate::launch {
namespace {

std::optional<std::string> first_of(const env::Variables& variables, const std::vector<std::string>& names) {
  return env::first_set(variables, names).text;
}

/// Checks the task count if it is a number; otherwise the ranks check it.
void check_multi_gpu_of(const LaunchOptions& options, const std::string& tasks) {
  check_multi_gpu(options, env::parse_integer(tasks).value_or(2));
}

/// Environment of a rank that reads its place from Slurm's variables.
env::Variables environment_under_slurm(const LaunchOptions& options, const env::Variables& inherited) {
  env::Variables variables = inherited;
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "ACCELERATE_JOB_ID"}) {
    variables.erase(name);
  }
  const auto start = import_start(variables);
  set_for_ranks(variables, options);
  if (start) set_start_for_ranks(variables, *start);
  if (options.main_process_ip) variables["MASTER_ADDR"] = *options.main_process_ip;
  if (options.main_process_port.value_or(0) != 0) {
    variables["MASTER_PORT"] = fmt::to_string(*options.main_process_port);
  }
  return variables;
}

}  // namespace

LaunchPlan plan_srun(const LaunchOptions& options, const env::Variables& inherited, const std::string& job_id,
                     const std::string& self) {
  const std::string tasks =
      fmt::to_string(options.num_processes ? *options.num_processes : tasks_of_job(inherited).number);
  check_multi_gpu_of(options, tasks);
  // Ranks that request a restart also exit with a non-zero code, each in its own time.
  const auto* at_first_code = options.resume_code ? "--kill-on-bad-exit=0" : "--kill-on-bad-exit=1";
  WorkerPlan srun{.command = {"srun", at_first_code, "--ntasks=" + tasks},
                  .environment = environment_under_slurm(options, inherited)};
  srun.environment["ACCELERATE_JOB_ID"] = job_id;  // srun forwards its environment
  if (!self.empty()) srun.environment[kLauncherVersionVariable] = ACCELERATE_VERSION;
  if (const auto backend = named_backend(options))
    srun.command.push_back(*backend == "mpi" ? "--mpi=pmix" : "--mpi=none");
  // the per-rank wrapper (task.hpp) binds the rank
  if (options.enable_cpu_affinity.value_or(false)) srun.command.emplace_back("--cpu-bind=none");
  srun.command.emplace_back("--");
  const auto rank = rank_wrapper_arguments(options, self);
  srun.command.insert(srun.command.end(), rank.begin(), rank.end());
  return {.runner = Runner::srun, .workers = {srun}};
}

LaunchPlan plan_task(const LaunchOptions& options, const env::Variables& inherited) {
  const auto tasks = first_of(inherited, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}).value_or("1");
  if (options.num_processes && fmt::to_string(*options.num_processes) != tasks) {
    fail(ErrorKind::usage,
         "num_processes is {}, but srun started {} tasks, each of which is a rank; leave it out, let srun start one "
         "task per node, or use --runner local for a separate job in this task",
         *options.num_processes, tasks);
  }
  check_multi_gpu_of(options, tasks);
  if (value_of(options, &LaunchOptions::max_restarts) != 0) {
    fail(ErrorKind::usage,
         "--max_restarts {}, but srun started {} tasks, each of which is a rank; in the batch script, without srun, "
         "accelerate_launch starts all of them again",
         *options.max_restarts, tasks);
  }
  WorkerPlan worker{.command = options.command, .environment = environment_under_slurm(options, inherited)};
  worker.rank = env::parse_integer(first_of(inherited, {"SLURM_PROCID"}).value_or("")).value_or(0);
  worker.local_rank = env::parse_integer(first_of(inherited, {"SLURM_LOCALID"}).value_or("")).value_or(0);
  return {.runner = Runner::task, .workers = {worker}};
}

}  // namespace accelerate::launch
