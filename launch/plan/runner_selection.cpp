// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/runner_selection.hpp"

#include <fmt/format.h>

#include <optional>
#include <string>

#include "accelerate/env/launcher_variables.hpp"
#include "accelerate/env/parse.hpp"
#include "accelerate/env/slurm.hpp"

namespace accelerate::launch {
namespace {

using env::Variables;

std::optional<int64_t> number(const Variables& variables, const std::vector<std::string>& names) {
  const auto field = env::first_set(variables, names);
  return field.text ? env::parse_integer(*field.text) : std::nullopt;
}

struct Step {
  int64_t tasks = 1;
  int64_t nodes = 1;
  int64_t node = 0;
};

/// The step of srun in which this launcher runs.
std::optional<Step> step_of(const Variables& variables) {
  if (!env::slurm::in_step(variables)) return std::nullopt;
  return Step{.tasks = number(variables, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}).value_or(1),
              .nodes = number(variables, {"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"}).value_or(1),
              .node = number(variables, {"SLURM_NODEID"}).value_or(0)};
}

/// Number of nodes if this is the shell of sbatch or salloc; otherwise nothing.
std::optional<int64_t> nodes_of_allocation(const Variables& variables) {
  if (!env::find(variables, "SLURM_JOB_ID") || env::slurm::in_step(variables)) return std::nullopt;
  return number(variables, {"SLURM_JOB_NUM_NODES", "SLURM_NNODES"}).value_or(1);
}

/// On a single node srun is not needed; the allocation determines the number of ranks.
LaunchOptions with_tasks_of_one_node(const LaunchOptions& options, const Variables& variables) {
  const int64_t tasks = tasks_of_job(variables).number;
  const bool is_requested =
      options.num_processes || value_of(options, &LaunchOptions::num_machines) > 1 || options.runner;
  if (is_requested || tasks < 2 || nodes_of_allocation(variables) != 1) return options;
  LaunchOptions with_tasks = options;
  with_tasks.num_processes = tasks;
  return with_tasks;
}

Runner by_name(const std::string& name) {
  if (name == "ssh") return Runner::ssh;
  if (name == "srun") return Runner::srun;
  if (name == "mpirun") return Runner::mpirun;
  return Runner::local;
}

void check_hosts(const LaunchOptions& options, Runner runner) {
  const bool any = options.hosts || options.hostfile;
  if (options.hosts && options.hostfile) {
    fail(ErrorKind::usage, "--hosts and --hostfile are both given; use only one of them");
  }
  if (any && options.mpirun_hostfile) {
    fail(ErrorKind::usage, "--mpirun_hostfile and --{} are both given; use only one of them",
         options.hosts ? "hosts" : "hostfile");
  }
  if (runner == Runner::ssh && !any) {
    fail(ErrorKind::usage, "--runner ssh without hosts; give --hosts gpu-a:4,gpu-b:4 or --hostfile FILE");
  }
  if (runner != Runner::ssh && runner != Runner::mpirun && any) {
    fail(ErrorKind::usage, "--runner {} with {}; the runners that accept hosts are ssh and mpirun",
         options.runner.value_or("local"), options.hosts ? "--hosts" : "--hostfile");
  }
}

void check_ranks_per_machine(const LaunchOptions& options, Runner runner) {
  if (!options.ranks_per_machine || runner == Runner::local || runner == Runner::ssh) return;
  if (runner == Runner::mpirun) {
    fail(ErrorKind::usage,
         "ranks_per_machine is {}, which is not for mpirun; give each host its ranks, gpu-a:4,gpu-b:2",
         *options.ranks_per_machine);
  }
  fail(ErrorKind::usage,
       "ranks_per_machine is {}, but Slurm places its tasks; give --num_processes, or let srun start one task per node",
       *options.ranks_per_machine);
}

Runner runner_of(const LaunchOptions& options, const Variables& variables) {
  Runner runner = Runner::local;
  if (options.runner) {
    runner = by_name(*options.runner);
  } else if (options.mpirun_hostfile) {
    runner = Runner::mpirun;
  } else if (options.hosts || options.hostfile) {
    runner = Runner::ssh;
  } else if (value_of(options, &LaunchOptions::machine_rank) == 0 &&
             value_of(options, &LaunchOptions::num_machines) == 1) {
    const auto step = step_of(variables);
    if (step && step->tasks > step->nodes) return Runner::task;
    if (nodes_of_allocation(variables).value_or(1) > 1) return Runner::srun;
  }
  check_hosts(options, runner);
  return runner;
}

}  // namespace

Runner choose_runner(const LaunchOptions& options, const Variables& variables) {
  const Runner runner = runner_of(options, variables);
  check_ranks_per_machine(options, runner);
  return runner;
}

SlurmTasks tasks_of_job(const Variables& variables) {
  if (const auto all = number(variables, {"SLURM_NTASKS", "SLURM_NPROCS"})) return {.number = *all, .named = true};
  const int64_t nodes = number(variables, {"SLURM_JOB_NUM_NODES", "SLURM_NNODES"}).value_or(1);
  const auto per_node = number(variables, {"SLURM_NTASKS_PER_NODE"});
  return {.number = per_node.value_or(1) * nodes, .named = per_node.has_value()};
}

std::string slurm_choice_text(const SlurmTasks& tasks) {
  const bool one = tasks.number == 1;
  return fmt::format("{} {}; --num_processes N chooses otherwise", tasks.number,
                     tasks.named
                         ? (one ? "rank, as Slurm's job has one task" : "ranks, as many as Slurm's job has tasks")
                     : one ? "rank, as Slurm's job names no number of tasks"
                           : "ranks, one per node, as Slurm's job names no number of tasks");
}

LaunchOptions with_slurm_placement(const LaunchOptions& options, const Variables& variables) {
  const auto step = step_of(variables);
  if (!step) return with_tasks_of_one_node(options, variables);
  const bool is_requested = value_of(options, &LaunchOptions::num_machines) > 1 || options.runner;
  if (step->nodes < 2 || step->tasks != step->nodes || is_requested) return options;
  const auto nodes = env::first_set(variables, {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  const auto first = nodes.text ? env::slurm::first_host(*nodes.text) : std::nullopt;
  if (!first && !options.main_process_ip) {
    fail(ErrorKind::environment, "{} is '{}', must be a list of hosts, like node[01-04,7]; or give --main_process_ip",
         nodes.name, nodes.text.value_or(""));
  }
  LaunchOptions placed = options;
  placed.num_machines = step->nodes;
  placed.machine_rank = step->node;
  if (!placed.main_process_ip) placed.main_process_ip = first;
  if (!placed.main_process_port) {
    placed.main_process_port = env::slurm::port(number(variables, {"SLURM_JOB_ID", "SLURM_JOBID"}).value_or(0),
                                                number(variables, {"SLURM_STEP_ID"}).value_or(0));
  }
  return placed;
}

}  // namespace accelerate::launch
