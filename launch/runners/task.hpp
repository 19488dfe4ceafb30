// SPDX-License-Identifier: Apache-2.0
// Per-rank wrapper for ranks that srun or mpirun started: reports a failure with rank, host and last lines, and
// provides labels, log files and hang detection if requested.
#pragma once

#include <string>
#include <vector>

#include "launch/plan/machine.hpp"
#include "launch/plan/plan.hpp"
#include "launch/runners/runner_context.hpp"

namespace accelerate::launch {

/// Internal flag: run accelerate_launch as a per-rank wrapper under srun or mpirun. Not for users.
inline constexpr const char* kTaskFlag = "--task";

/// True if an option requires the per-rank wrapper, because other launchers do not support it.
bool needs_rank_wrapper(const LaunchOptions& options);

/// Returns "SELF --task --label=1 ... -- program arguments". Pure function.
///
/// \param self  The launcher's path on all hosts. If empty, the program runs without a wrapper.
std::vector<std::string> rank_wrapper_arguments(const LaunchOptions& options, const std::string& self);

/// Returns the processors of this rank among the ranks of its machine, from its environment. Empty if srun has already
/// bound the rank. Pure function.
std::vector<int> processors_of_task(const env::Variables& variables, const Machine& machine);

/// \returns the rank's exit code.
int run_task(WorkerPlan worker, const LaunchOptions& options);
/// The same for a wrapper that rank_wrapper_arguments() requested; the rank's place is read from the environment.
int run_task(const LaunchOptions& options);

}  // namespace accelerate::launch
