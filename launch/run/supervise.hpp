// SPDX-License-Identifier: Apache-2.0
// Runs a job: starts its workers, forwards output and signals, stops all workers when one fails, and restarts them if
// restarts are enabled.
#pragma once

#include <cstdint>
#include <functional>

#include "launch/plan/plan.hpp"
#include "launch/run/supervise_options.hpp"

namespace accelerate::launch {

/// Returns the plan of a restart attempt, where 0 is the first start. Called once per attempt.
using PlanOf = std::function<LaunchPlan(int64_t restart)>;

/// Blocks until all workers have ended, all processes that they started are gone and their output is written. Each
/// restart attempt runs in a guardian process (guardian.hpp). During the call this process is a sub-reaper, and
/// children that appear during the call belong to the job.
///
/// \returns 0, or the exit code of the worker that failed first (128 + signal). SIGINT, SIGTERM, SIGHUP and SIGQUIT are
///          forwarded to the workers, and a second one (except SIGHUP) kills them. SIGUSR1 and SIGUSR2 are forwarded
///          and end nothing.
/// \throws LaunchError if a worker cannot be started; workers that were already started are stopped.
int supervise(const PlanOf& plan_of, const SuperviseOptions& options = {});
/// Uses the same plan for every attempt.
int supervise(const LaunchPlan& plan, const SuperviseOptions& options = {});

}  // namespace accelerate::launch
