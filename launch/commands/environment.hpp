// SPDX-License-Identifier: Apache-2.0
// What a bug report should say of a machine.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/env/process_env.hpp"
#include "launch/commands/command.hpp"

namespace accelerate::launch {

using Facts = std::vector<std::pair<std::string, std::string>>;

/// What the system's files say: system, processors, memory, GPUs and their driver.
///
/// root   where /etc, /proc and /sys lie: "/", elsewhere in tests
Facts facts_of_machine(const std::filesystem::path& root, const env::Variables& variables);

/// Programs of other people that we use, where PATH has them.
Facts facts_of_programs(const env::Variables& variables);

/// Variables that steer training. What tells a job's secret is hidden.
Facts facts_of_variables(const env::Variables& variables);

/// The program: accelerate_env [options]
Answer environment(const Arguments& arguments);

}  // namespace accelerate::launch
