// SPDX-License-Identifier: Apache-2.0
// Environment variables by which launchers define the ranks of a process. process_env.cpp interprets them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/env/process_env.hpp"

namespace accelerate::env {

/// A variable; `text` is unset if the variable is.
struct Field {
  std::string name;
  std::optional<std::string> text;
};

/// The variables of one launcher.
struct LauncherVariables {
  Source source;
  std::vector<Field> fields;  ///< rank, world size, local rank, local world size; empty outside a Slurm step
};

Field field(const Variables& variables, const std::string& name);
/// Returns the first variable that is set.
Field first_set(const Variables& variables, const std::vector<std::string>& names);

/// \throws Error (environment): "RANK is 'one', must be an integer".
[[noreturn]] void throw_malformed_variable(const Field& wrong, std::string_view expected);
/// \param from  A field that is set.
int64_t number(const Field& from);

/// Returns one set per launcher, in order of precedence: the first complete set is used.
std::vector<LauncherVariables> launcher_variables_in_order(const Variables& variables);

bool has_any(const LauncherVariables& set);
/// True if all four variables are set, or rank and world size of a job of one process.
bool is_complete(const LauncherVariables& set);

/// Returns "RANK=3 and WORLD_SIZE=4".
std::string describe_variables(const LauncherVariables& set);
/// \throws Error (environment) with the variables that are set, those that are missing, and the remedy.
[[noreturn]] void throw_incomplete_variables(const LauncherVariables& set);

}  // namespace accelerate::env
