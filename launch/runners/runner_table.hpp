// SPDX-License-Identifier: Apache-2.0
// The table of runners: one row and one file per runner.
#pragma once

#include <string>

#include "launch/plan/runner_selection.hpp"
#include "launch/runners/runner_context.hpp"

namespace accelerate::launch {

/// Returns the runner's commands as a shell script, for --dry_run.
std::string script_of(Runner runner, const RunnerContext& call);

/// Starts the runner, waits for its end and returns the exit code.
/// \throws LaunchError if a program that the runner needs does not exist.
int run_with(Runner runner, const RunnerContext& call);

}  // namespace accelerate::launch
