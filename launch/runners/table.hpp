// SPDX-License-Identifier: Apache-2.0
// The table of runners: one row and one file per runner.
#pragma once

#include <string>

#include "launch/plan/choose.hpp"
#include "launch/runners/call.hpp"

namespace accelerate::launch {

/// Returns the runner's commands as a shell script, for --dry_run.
std::string script_of(Runner runner, const Call& call);

/// Starts the runner, waits for its end and returns the exit code.
/// \throws LaunchError if a program that the runner needs does not exist.
int run(Runner runner, const Call& call);

}  // namespace accelerate::launch
