// SPDX-License-Identifier: Apache-2.0
// Environment variables with which launchers describe a process's place in its job. process_env.cpp interprets them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/env/process_env.hpp"

namespace accelerate::env {

/// A variable, set or not.
struct Field {
  std::string name;
  std::optional<std::string> text;
};

/// The variables of one launcher.
struct LauncherSet {
  Source source;
  std::vector<Field> fields;  ///< rank, world size, local rank, local world size; empty outside a Slurm step
};

Field field(const Variables& variables, const std::string& name);
/// The first of them that is set.
Field first_set(const Variables& variables, const std::vector<std::string>& names);

/// "RANK is 'one', must be an integer", Error (environment).
[[noreturn]] void refuse_text(const Field& wrong, std::string_view expected);
/// \param from  A field that is set.
int64_t number(const Field& from);

/// A launcher is a row here; the first complete set counts.
std::vector<LauncherSet> sets_in_order(const Variables& variables);

bool has_trace(const LauncherSet& set);
/// All four, or rank and world size of a job of one.
bool is_complete(const LauncherSet& set);

/// "RANK=3 and WORLD_SIZE=4"
std::string said(const LauncherSet& set);
/// \throws Error (environment) with the variables that are set, those that are missing, and the remedy.
[[noreturn]] void refuse_half(const LauncherSet& set);

}  // namespace accelerate::env
