// SPDX-License-Identifier: Apache-2.0
#include "launch/runners/forwarded_environment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "accelerate/env/fsdp_table.hpp"
#include "accelerate/env/parallelism_table.hpp"
#include "launch/plan/options_table.hpp"

namespace accelerate::launch {
namespace {

bool is_host_specific(std::string_view name) {
  constexpr std::array<std::string_view, 22> names{
      "HOME",   "USER",     "LOGNAME", "SHELL",   "MAIL",     "PWD",     "OLDPWD",          "SHLVL",
      "_",      "TERM",     "HOST",    "TTY",     "HOSTNAME", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY",
      "TMPDIR", "WINDOWID", "LINES",   "COLUMNS", "EDITOR",   "HOSTTYPE"};
  constexpr std::array<std::string_view, 7> prefixes{"SSH_",       "XDG_",      "DBUS_", "SUDO_",
                                                     "BASH_FUNC_", "LS_COLORS", "TMUX"};
  return std::find(names.begin(), names.end(), name) != names.end() ||
         std::any_of(prefixes.begin(), prefixes.end(), [&](auto prefix) { return name.starts_with(prefix); });
}

/// True for names that a shell and mpirun accept.
bool is_variable_name(std::string_view name) {
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name.front())) == 0 &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return c == '_' || (c < 128 && std::isalnum(c)); });
}

}  // namespace

env::Variables forwarded_variables(const env::Variables& variables) {
  env::Variables result;
  for (const auto& [name, value] : variables) {
    const bool is_still_valid = is_host_specific(name) || is_foreign_launcher_variable(name, true) ||
                                !is_variable_name(name) || name == "RANK" || name == "WORLD_SIZE" ||
                                name == "LOCAL_RANK" || name == "LOCAL_WORLD_SIZE";
    if (!is_still_valid) result.emplace(name, value);
  }
  result.erase("ACCELERATE_CONFIG_FILE");
  for_each_option([&](std::string_view /*group*/, const auto& row) { result.erase(std::string(row.variable)); });
  return result;
}

std::vector<std::string> arguments_of(const LaunchOptions& options) {
  std::vector<std::string> words;
  const auto add = [&](const auto& row, const auto& value) {
    if (value) words.push_back(fmt::format("--{}={}", row.option.name, row.type.text(*value)));
  };
  for_each_option([&](std::string_view /*group*/, const auto& row) { add(row, row.of(options)); });
  env::for_each_setting([&](const auto& row) { add(row, row.of(options.settings)); });
  env::for_each_fsdp_setting([&](const auto& row) { add(row, row.of(options.fsdp)); });
  const auto use_mesh = env::use_parallelism_row();
  add(use_mesh, use_mesh.of(options));
  env::for_each_parallelism_setting([&](const auto& row) { add(row, row.of(options.parallelism)); });
  return words;
}

}  // namespace accelerate::launch
