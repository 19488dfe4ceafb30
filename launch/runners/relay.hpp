// SPDX-License-Identifier: Apache-2.0
// The two ends of an ssh connection to another host, each a process: accelerate_launch --relay locally, --agent
// remotely.
#pragma once

#include <string>
#include <vector>

namespace accelerate::launch {

/// Internal flag: run accelerate_launch as a relay. Not for users.
inline constexpr const char* kRelayFlag = "--relay";
inline constexpr const char* kAgentFlag = "--agent";

/// Starts ssh to a host and an agent there. Forwards stdin, signals and this process's environment, and copies the
/// agent's output.
///
/// \param words  Host, connection timeout in seconds, arguments of the remote launcher.
/// \returns the exit code of the remote launcher; 255 also if the host is unreachable or the connection was lost.
/// \throws LaunchError if ssh cannot be started.
int run_relay(const std::vector<std::string>& words);

/// Runs the launcher that a relay requests. If the relay closes the connection, or is silent for 30 seconds, the job is
/// ended.
///
/// \returns the exit code of that launcher.
/// \throws LaunchError if the request is invalid or the launcher cannot be started.
int run_agent();

}  // namespace accelerate::launch
