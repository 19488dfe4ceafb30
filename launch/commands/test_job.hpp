// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "launch/commands/command.hpp"
#include "launch/plan/machine.hpp"

namespace accelerate::launch {

/// Returns the command line of accelerate_launch for a test job: the given options, plus two ranks on the CPU if no
/// option determines the number of ranks and there is no GPU, because a single rank would test no communication. Pure
/// function.
///
/// \param variables  The environment, which may also determine the number of ranks.
/// \param folder     Folder of the installed programs.
std::vector<std::string> test_command(const Arguments& arguments, const Machine& machine,
                                      const env::Variables& variables, const std::string& folder);

/// The program accelerate_test [options of accelerate_launch]. Does not return: it executes accelerate_launch.
CommandResult test_job(const Arguments& arguments);

}  // namespace accelerate::launch
