// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "launch/commands/command.hpp"
#include "launch/plan/machine.hpp"

namespace accelerate::launch {

/// The command line of accelerate_launch for a test: what was given, and two ranks on the CPU where nothing says how
/// many and no GPU is there, because one rank talks to nobody. Pure.
///
/// variables   the environment, which may say it, too
/// folder      of the installed programs
std::vector<std::string> test_command(const Arguments& arguments, const Machine& machine,
                                      const env::Variables& variables, const std::string& folder);

/// The program: accelerate_test [options of accelerate_launch]. Does not come back: it becomes accelerate_launch.
Answer test_job(const Arguments& arguments);

}  // namespace accelerate::launch
