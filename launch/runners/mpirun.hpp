// SPDX-License-Identifier: Apache-2.0
// Open MPI starts the ranks: MPI over several machines needs its daemons.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launch/plan/hosts.hpp"
#include "launch/plan/options.hpp"
#include "launch/plan/plan.hpp"

namespace accelerate::launch {

/// What was chosen where neither num_processes nor the hosts' slots say how many ranks there are, and how to choose.
/// One line.
std::optional<std::string> what_mpirun_chose(const LaunchOptions& options, std::vector<HostSlots> hosts);

/// One worker, which is mpirun. Pure.
///
/// options   resolved
/// hosts     empty: this one alone
/// job_id    chooses the port too, where none is given
/// self      this program's path, where it stands around each rank (task.hpp)
LaunchPlan plan_mpirun(const LaunchOptions& options, std::vector<HostSlots> hosts, const env::Variables& inherited,
                       const std::string& job_id, const std::string& self);

}  // namespace accelerate::launch
