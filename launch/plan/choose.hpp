// SPDX-License-Identifier: Apache-2.0
// Who starts the ranks, where the options and Slurm's variables leave it open.
#pragma once

#include <string_view>

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

/// The options of a launcher that srun started once on each node: which machine this is, and where they meet; in a
/// batch script on one node: as many ranks as it has tasks. As they are elsewhere, or where the options say it
/// themselves.
LaunchOptions with_slurm_place(const LaunchOptions& options, const env::Variables& variables);

}  // namespace accelerate::launch
