// SPDX-License-Identifier: Apache-2.0
// This launcher starts the ranks of this machine itself: of the whole job, or as one of several machines.
#pragma once

#include <string>

#include "launch/runners/call.hpp"

namespace accelerate::launch {

/// The ranks as a shell would start them; no port is kept.
std::string script_of_local(const Call& call);

/// Runs the ranks of this machine and returns the exit code.
/// \throws LaunchError for a missing resource of this machine: GPUs, a port, MPI.
int run_local(const Call& call);

}  // namespace accelerate::launch
