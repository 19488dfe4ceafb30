// SPDX-License-Identifier: Apache-2.0
// Runs a job: starts its workers, passes output and signals on, stops all when one fails, and starts them again where
// that is asked for.
#pragma once

#include <cstdint>
#include <functional>

#include "launch/plan/plan.hpp"
#include "launch/run/supervise_options.hpp"

namespace accelerate::launch {

/// The plan of a start: restart 0 is the first, 1 the first restart. Called once for each.
using PlanOf = std::function<LaunchPlan(int64_t restart)>;

/// Blocks until all workers have ended, nothing that they started is left and their output is written. A guardian
/// process (guardian.hpp) carries each start out. While this runs the process is a sub-reaper, and children that it did
/// not have before are the job's.
///
/// returns   0, or the exit code of the worker that failed first (128 + signal). SIGINT, SIGTERM, SIGHUP and SIGQUIT
///           are passed on to the workers, a second one (but for SIGHUP) kills them; SIGUSR1 and SIGUSR2 are passed on
///           and end nothing
/// Throws LaunchError when a worker cannot be started; those that were are stopped.
int supervise(const PlanOf& plan_of, const SuperviseOptions& options = {});
/// The same plan for every start.
int supervise(const LaunchPlan& plan, const SuperviseOptions& options = {});

}  // namespace accelerate::launch
