// SPDX-License-Identifier: Apache-2.0
// Starts the ranks of this machine: the whole job, or one of several machines.
#pragma once

#include <string>

#include "launch/runners/runner_context.hpp"

namespace accelerate::launch {

/// The ranks as a shell script; no port is reserved.
std::string script_of_local(const RunnerContext& call);

/// Runs the ranks of this machine and returns the exit code.
/// \throws LaunchError for a missing resource of this machine: GPUs, a port, MPI.
int run_local(const RunnerContext& call);

}  // namespace accelerate::launch
