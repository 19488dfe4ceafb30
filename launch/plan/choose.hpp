// SPDX-License-Identifier: Apache-2.0
// Who starts the ranks, where the options and Slurm's variables leave it open.
#pragma once

#include <cstdint>
#include <string>

#include "launch/plan/options.hpp"

namespace accelerate::launch {

enum class Runner {
  local,   ///< this launcher, on this machine: alone or as one of several that were started by hand or by srun
  ssh,     ///< a launcher on each of the hosts
  srun,    ///< Slurm starts the ranks, from a batch script or an allocation
  mpirun,  ///< Open MPI starts the ranks
  task,    ///< this launcher is one of many that srun started, each of which becomes a rank
};

/// Throws LaunchError (2) when options contradict one another.
Runner choose_runner(const LaunchOptions& options, const env::Variables& variables);

/// How many ranks the job has whose shell (of sbatch or salloc) this is, where the options leave it open.
struct SlurmTasks {
  int64_t number = 1;
  bool named = false;  ///< false: one per node, as the job names no number

  bool operator==(const SlurmTasks&) const = default;
};

/// Pure.
SlurmTasks tasks_of_job(const env::Variables& variables);

/// What was chosen by it, and how to choose otherwise. One line.
std::string what_slurm_chose(const SlurmTasks& tasks);

/// The options of a launcher that srun started once on each node: which machine this is, and where they meet; in a
/// batch script on one node: as many ranks as it has tasks. As they are elsewhere, or where the options say it
/// themselves.
LaunchOptions with_slurm_place(const LaunchOptions& options, const env::Variables& variables);

}  // namespace accelerate::launch
