// SPDX-License-Identifier: Apache-2.0
// Selects the runner that starts the ranks if the options do not name one.
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

/// \throws LaunchError (2) if options contradict each other.
Runner choose_runner(const LaunchOptions& options, const env::Variables& variables);

/// Number of ranks of the job in the shell of sbatch or salloc, if the options do not determine it.
struct SlurmTasks {
  int64_t number = 1;
  bool named = false;  ///< false: one per node, as the job names no number

  bool operator==(const SlurmTasks&) const = default;
};

/// Pure.
SlurmTasks tasks_of_job(const env::Variables& variables);

/// What was chosen by it, and how to choose otherwise. One line.
std::string what_slurm_chose(const SlurmTasks& tasks);

/// For a launcher that srun started once per node, returns the options with the machine rank and rendezvous address
/// filled in. In a batch script on a single node, sets as many ranks as the allocation has tasks. Otherwise, or if the
/// options determine these values, returns the options unchanged.
LaunchOptions with_slurm_place(const LaunchOptions& options, const env::Variables& variables);

}  // namespace accelerate::launch
