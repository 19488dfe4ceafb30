// SPDX-License-Identifier: Apache-2.0
// Slurm starts the ranks: for a launcher in a batch script or an allocation, and for one that srun started per task.
#pragma once

#include <string>

#include "launch/plan/machine.hpp"
#include "launch/plan/options.hpp"
#include "launch/plan/plan.hpp"

namespace accelerate::launch {

/// Plans one worker, which is srun. The ranks read their places from Slurm's variables. Pure function.
///
/// \param options  Resolved options. Without num_processes, the allocation's number of tasks is used.
/// \param self     This program's path if it wraps each rank (task.hpp).
LaunchPlan plan_srun(const LaunchOptions& options, const env::Variables& inherited, const std::string& job_id,
                     const std::string& self);

/// Plans one worker, the rank that this task of srun becomes. Pure function.
/// \throws LaunchError (2) if num_processes differs from srun's tasks, or if restarts are requested.
LaunchPlan plan_task(const LaunchOptions& options, const env::Variables& inherited);

}  // namespace accelerate::launch
