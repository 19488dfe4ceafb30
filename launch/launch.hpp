// SPDX-License-Identifier: Apache-2.0
// The launcher as a call: what accelerate_launch does once its command line is read.
#pragma once

#include "launch/options.hpp"

namespace accelerate::launch {

/// Starts options.command on every rank of this machine and waits for the end. Blocks SIGINT, SIGTERM and SIGHUP of the
/// calling thread meanwhile, because they go to the ranks; with MPI it also clears other launchers' variables from this
/// process, and works once per process.
///
/// returns   the exit code: 0, or that of the rank that failed first (128 + signal)
/// Throws LaunchError when nothing could be started.
int launch(const LaunchOptions& options);

}  // namespace accelerate::launch
