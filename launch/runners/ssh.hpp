// SPDX-License-Identifier: Apache-2.0
// Starts a launcher on each of several hosts over plain OpenSSH, with the user's keys and known hosts.
#pragma once

#include <chrono>
#include <string>

#include "launch/plan/hosts.hpp"
#include "launch/plan/options.hpp"
#include "launch/plan/plan.hpp"

namespace accelerate::launch {

/// Returns the launcher options for each host, in order. Pure function.
///
/// \param options  Resolved options.
/// \param job_id   Only selects a port if none is given, so that two jobs on the same hosts rarely share one.
std::vector<LaunchOptions> options_of_hosts(const LaunchOptions& options, std::vector<HostSlots>& hosts,
                                            const std::string& job_id);

/// Plans one relay (relay.hpp) per host; workers are machines.
///
/// \param self  This program's path.
LaunchPlan plan_ssh(const LaunchOptions& options, std::vector<HostSlots> hosts, const env::Variables& inherited,
                    const std::string& job_id, const std::string& self, std::chrono::seconds to_connect);

/// The same as shell commands for --dry_run: ssh with the launcher's command line.
LaunchPlan ssh_script_plan(const LaunchOptions& options, std::vector<HostSlots> hosts, const env::Variables& inherited,
                           const std::string& job_id, const std::string& self, const std::string& folder);

}  // namespace accelerate::launch
