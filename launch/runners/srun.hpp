// SPDX-License-Identifier: Apache-2.0
// Slurm starts the ranks: a launcher in a batch script or an allocation, and one that srun started for each task.
#pragma once

#include <string>

#include "launch/plan/machine.hpp"
#include "launch/plan/options.hpp"
#include "launch/plan/plan.hpp"

namespace accelerate::launch {

/// One worker, which is srun; the ranks find their places in Slurm's variables. Pure.
///
/// options   resolved; without num_processes as many ranks as the allocation has tasks
/// self      this program's path, where it stands around each rank (task.hpp)
LaunchPlan plan_srun(const LaunchOptions& options, const env::Variables& inherited, const std::string& job_id,
                     const std::string& self);

/// One worker, the rank that this task of srun becomes. Pure.
/// Throws LaunchError (2) when num_processes is another number than srun's tasks, or restarts are asked for.
LaunchPlan plan_task(const LaunchOptions& options, const env::Variables& inherited);

}  // namespace accelerate::launch
