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

/// Returns one line that states the chosen number of ranks and how to change it, if neither num_processes nor the
/// hosts' slots determine it.
std::optional<std::string> mpirun_choice_text(const LaunchOptions& options, std::vector<HostSlots> hosts);

/// Plans one worker, which is mpirun. Pure function.
///
/// \param options  Resolved options.
/// \param hosts    If empty, only this host is used.
/// \param job_id   Also selects the port if none is given.
/// \param self     This program's path if it wraps each rank (task.hpp).
LaunchPlan plan_mpirun(const LaunchOptions& options, std::vector<HostSlots> hosts, const env::Variables& inherited,
                       const std::string& job_id, const std::string& self);

}  // namespace accelerate::launch
