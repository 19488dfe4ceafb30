// SPDX-License-Identifier: Apache-2.0
// Facts about a machine for a bug report.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/env/process_env.hpp"
#include "accelerate/env/settings.hpp"
#include "launch/commands/command.hpp"

namespace accelerate::launch {

using Facts = std::vector<std::pair<std::string, std::string>>;

/// Returns facts from system files: operating system, processors, memory, GPUs and their driver.
///
/// \param root  Folder that contains /etc, /proc and /sys: "/", or another folder in tests.
Facts facts_of_machine(const std::filesystem::path& root, const env::Variables& variables);

/// Returns the versions of external programs that the launcher uses, if they are in PATH.
Facts facts_of_programs(const env::Variables& variables);

/// Returns the environment variables that affect training. Values of secrets are hidden.
Facts facts_of_variables(const env::Variables& variables);

/// Returns the sizes of the mesh that the variables and the config file configure, and one line for each rank with its
/// coordinates. \throws Error (environment) for an invalid value.
std::string mesh_in_words(const env::Variables& variables, const env::Config& config);

/// The program: accelerate_env [options].
CommandResult environment(const Arguments& arguments);

}  // namespace accelerate::launch
