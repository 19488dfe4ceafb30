// SPDX-License-Identifier: Apache-2.0
#include "launch/runners/srun.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "accelerate/env/launcher_sets.hpp"
#include "accelerate/env/parse.hpp"
#include "launch/plan/error.hpp"
#include "launch/run/spawn.hpp"

namespace accelerate::launch {
namespace {

std::optional<std::string> first_of(const env::Variables& variables, const std::vector<std::string>& names) {
  return env::first_set(variables, names).text;
}

/// What the allocation asks for; a task per node where it does not say.
std::string tasks_of_allocation(const env::Variables& variables) {
  return first_of(variables, {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"}).value_or("1");
}

/// The environment of a rank whose place is in Slurm's variables.
env::Variables environment_under_slurm(const LaunchOptions& options, const env::Variables& inherited) {
  env::Variables variables = inherited;
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "ACCELERATE_JOB_ID"}) {
    variables.erase(name);
  }
  set_for_ranks(variables, options);
  if (options.main_process_ip) variables["MASTER_ADDR"] = *options.main_process_ip;
  if (options.main_process_port.value_or(0) != 0) {
    variables["MASTER_PORT"] = fmt::to_string(*options.main_process_port);
  }
  return variables;
}

}  // namespace

LaunchPlan plan_srun(const LaunchOptions& options, const env::Variables& inherited) {
  const std::string tasks =
      options.num_processes ? fmt::to_string(*options.num_processes) : tasks_of_allocation(inherited);
  WorkerPlan srun{.command = {"srun", "--kill-on-bad-exit=1", "--ntasks=" + tasks},
                  .environment = environment_under_slurm(options, inherited)};
  if (const auto& backend = options.settings.backend)
    srun.command.push_back(*backend == "mpi" ? "--mpi=pmix" : "--mpi=none");
  srun.command.emplace_back("--");
  srun.command.insert(srun.command.end(), options.command.begin(), options.command.end());
  return {.workers = {srun}};
}

LaunchPlan plan_task(const LaunchOptions& options, const env::Variables& inherited) {
  const auto tasks = first_of(inherited, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}).value_or("1");
  if (options.num_processes && fmt::to_string(*options.num_processes) != tasks) {
    fail(ErrorKind::usage,
         "num_processes is {}, but srun started {} tasks, each of which is a rank; leave it out, let srun start one "
         "task "
         "per node, or say --runner local for a job of this task's own",
         *options.num_processes, tasks);
  }
  WorkerPlan worker{.command = options.command, .environment = environment_under_slurm(options, inherited)};
  worker.rank = env::parse_integer(first_of(inherited, {"SLURM_PROCID"}).value_or("")).value_or(0);
  return {.workers = {worker}};
}

void become(const WorkerPlan& worker) {
  const std::string program = find_program(worker.command.front(), worker.environment);
  std::vector<std::string> arguments = worker.command;
  std::vector<std::string> variables;
  for (const auto& [name, value] : worker.environment) variables.push_back(name + "=" + value);
  const auto pointers_to = [](std::vector<std::string>& words) {
    std::vector<char*> pointers;
    for (auto& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    return pointers;
  };
  execve(program.c_str(), pointers_to(arguments).data(), pointers_to(variables).data());
  fail_with(126, ErrorKind::environment, "{} cannot be run: {}", worker.command.front(), std::strerror(errno));
}

}  // namespace accelerate::launch
