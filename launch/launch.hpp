// SPDX-License-Identifier: Apache-2.0
// The launcher as a function: everything that accelerate_launch does after parsing its command line.
#pragma once

#include "launch/plan/options.hpp"

namespace accelerate::launch {

/// Opens /dev/null for missing standard streams. Otherwise the first file or pipe of the launcher would get their
/// descriptors.
void open_standard_streams();

/// Starts options.command on every rank of this machine and waits until all ranks have ended. Meanwhile signals that
/// are forwarded to the ranks are blocked in the calling thread (signals.hpp). The function forks a guardian process
/// that does not exec, so call it before the process has threads.
///
/// \returns 0, or the exit code of the rank that failed first (128 + signal).
/// \throws LaunchError if no rank could be started, Error (environment) for a setting that the library would refuse.
int launch(const LaunchOptions& given);

}  // namespace accelerate::launch
