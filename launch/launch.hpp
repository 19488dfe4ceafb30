// SPDX-License-Identifier: Apache-2.0
// The launcher as a call: what accelerate_launch does once its command line is read.
#pragma once

#include "launch/plan/options.hpp"

namespace accelerate::launch {

/// Started without stdin, stdout or stderr, the first file or pipe that we make would take their numbers: /dev/null
/// does.
void open_standard_streams();

/// Starts options.command on every rank of this machine and waits for the end. Blocks the signals of the calling thread
/// that go to the ranks meanwhile (signals.hpp). A guardian process is forked, which runs on without exec: call this
/// before the process has threads.
///
/// returns   the exit code: 0, or that of the rank that failed first (128 + signal)
/// Throws LaunchError when nothing could be started, Error (environment) for a setting that the library would refuse.
int launch(const LaunchOptions& given);

}  // namespace accelerate::launch
