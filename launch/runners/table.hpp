// SPDX-License-Identifier: Apache-2.0
// The runners: one row each, and one file for what it starts.
#pragma once

#include <string>

#include "launch/plan/choose.hpp"
#include "launch/runners/call.hpp"

namespace accelerate::launch {

/// What the runner would start, in a form that a shell can run; for --dry_run.
std::string script_of(Runner runner, const Call& call);

/// Starts it and waits for the end; returns the exit code.
/// Throws LaunchError when the program that it needs is not there.
int run(Runner runner, const Call& call);

}  // namespace accelerate::launch
