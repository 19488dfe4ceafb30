// SPDX-License-Identifier: Apache-2.0
// The two ends of an ssh connection to another host, each a process: accelerate_launch --relay here, --agent there.
#pragma once

#include <string>
#include <vector>

namespace accelerate::launch {

/// The word that makes accelerate_launch one of them; nobody gives it by hand.
inline constexpr const char* relay_word = "--relay";
inline constexpr const char* agent_word = "--agent";

/// Starts ssh to a host and an agent there; passes stdin, signals and this process's environment on. Its output is
/// ours.
///
/// words     host, seconds to connect, arguments of the launcher there
/// returns   the exit code of the launcher there; 255 also where the host cannot be reached or the connection was lost
/// Throws LaunchError.
int run_relay(const std::vector<std::string>& words);

/// Runs the launcher that a relay asks for. When the relay is gone, or silent for 30 seconds, the job is told to end.
///
/// returns   the exit code of that launcher
/// Throws LaunchError.
int run_agent();

}  // namespace accelerate::launch
