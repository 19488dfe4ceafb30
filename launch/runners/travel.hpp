// SPDX-License-Identifier: Apache-2.0
// What of this machine's environment and command line goes to other machines.
#pragma once

#include <string>
#include <vector>

#include "launch/plan/options.hpp"
#include "launch/plan/plan.hpp"

namespace accelerate::launch {

/// The variables that another host should have: all but those that belong to this host, this login or another launcher,
/// and the launcher's own, which go as options.
env::Variables travelling(const env::Variables& variables);

/// The options as words for another launcher's command line: "--num_processes=4".
std::vector<std::string> arguments_of(const LaunchOptions& options);

}  // namespace accelerate::launch
