// SPDX-License-Identifier: Apache-2.0
// Selects environment variables and options for other machines.
#pragma once

#include <string>
#include <vector>

#include "launch/plan/options.hpp"
#include "launch/plan/plan.hpp"

namespace accelerate::launch {

/// Variables for another host: all except those of this host, of this login and of other launchers, and those of the
/// launcher, which are passed as options.
env::Variables forwarded_variables(const env::Variables& variables);

/// The options as arguments for another launcher: "--num_processes=4".
std::vector<std::string> arguments_of(const LaunchOptions& options);

}  // namespace accelerate::launch
