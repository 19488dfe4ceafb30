// SPDX-License-Identifier: Apache-2.0
// Selects the runner that starts the ranks if the options do not name one.
#pragma once

#include <cstdint>
#include <string>

#include "launch/plan/options.hpp"

namespace accelerate::launch {

enum class Runner {
  local,   ///< this launcher starts the ranks of this machine: alone, or as one of several started by hand or by srun
  ssh,     ///< one launcher per host, started with ssh
  srun,    ///< Slurm starts the ranks, from a batch script or an allocation
  mpirun,  ///< Open MPI starts the ranks
  task,    ///< srun started one launcher per rank, and each becomes a rank
};

/// \throws LaunchError (2) if options contradict each other.
Runner choose_runner(const LaunchOptions& options, const env::Variables& variables);

/// Number of ranks of the job in the shell of sbatch or salloc, if the options do not determine it.
struct SlurmTasks {
  int64_t number = 1;
  bool named = false;  ///< false if the job has no task count, which means one per node

  bool operator==(const SlurmTasks&) const = default;
};

/// Pure function.
SlurmTasks tasks_of_job(const env::Variables& variables);

/// Returns one line with the number of ranks from Slurm, and how to change it.
std::string slurm_choice_text(const SlurmTasks& tasks);

/// For a launcher that srun started once per node, returns the options with the machine rank and rendezvous address
/// filled in. In a batch script on a single node, sets as many ranks as the allocation has tasks. Otherwise, or if the
/// options determine these values, returns the options unchanged.
LaunchOptions with_slurm_placement(const LaunchOptions& options, const env::Variables& variables);

}  // namespace accelerate::launch
