// SPDX-License-Identifier: Apache-2.0
#include "accelerate/env/sharding_groups.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "accelerate/base/closest_match.hpp"
#include "accelerate/env/deepspeed.hpp"
#include "accelerate/env/fsdp_table.hpp"
#include "accelerate/env/parallelism_table.hpp"
#include "accelerate/env/precedence.hpp"

namespace accelerate::env {
namespace {

template <typename... Args>
[[noreturn]] void refuse_group(fmt::format_string<Args...> format, Args&&... args) {
  base::fail(ErrorKind::environment, {}, "settings", format, std::forward<Args>(args)...);
}

[[noreturn]] void refuse_unknown(const std::string& key, const std::string& group,
                                 const std::vector<std::string>& known, const std::string& path) {
  const auto meant = base::closest_match(key, known);
  refuse_group("{} has the unknown key '{}' in {}{}", path, key, group,
               meant ? fmt::format("; did you mean {}?", *meant) : "; remove it");
}

}  // namespace

void add_fsdp_config(const ConfigGroup& group, Config& config) {
  std::vector<std::string> known;
  for_each_fsdp_setting([&](const auto& row) {
    if (row.key.starts_with("fsdp_")) known.emplace_back(row.key);
  });
  config.values.emplace("use_fsdp", "true");
  for (const auto& [given, value] : group) {
    const std::string key = given.starts_with("fsdp_") ? given : "fsdp_" + given;
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      refuse_unknown(given, "fsdp_config", known, config.path);
    }
    if (!config.values.emplace(key, value).second) refuse_group("{} has {} twice in fsdp_config", config.path, key);
  }
}

void add_parallelism_config(const ConfigGroup& group, Config& config) {
  constexpr std::string_view prefix = "parallelism_config_";
  // Options of context and sequence parallelism, which `accelerate config` writes only for sizes above 1.
  constexpr std::array<std::string_view, 6> unused{
      "cp_backend",    "cp_comm_strategy",          "sp_backend",
      "sp_seq_length", "sp_seq_length_is_variable", "sp_attn_implementation"};
  std::vector<std::string> known;
  for_each_parallelism_setting([&](const auto& row) { known.emplace_back(row.key); });
  config.values.emplace("use_parallelism_config", "true");
  for (const auto& [given, value] : group) {
    const std::string key = given.starts_with(prefix) ? given : std::string(prefix) + given;
    if (std::find(unused.begin(), unused.end(), key.substr(prefix.size())) != unused.end()) {
      config.values.emplace("parallelism_config." + key, value);
    } else if (std::find(known.begin(), known.end(), key) == known.end()) {
      refuse_unknown(given, "parallelism_config", known, config.path);
    } else if (!config.values.emplace(key, value).second) {
      refuse_group("{} has {} twice in parallelism_config", config.path, key);
    }
  }
}

void add_deepspeed_config(const ConfigGroup& group, Config& config) {
  auto known = deepspeed_keys();
  known.emplace_back("gradient_accumulation_steps");
  for (const auto& [key, value] : group) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      refuse_unknown(key, "deepspeed_config", known, config.path);
    }
  }
  const auto settings =
      translate_deepspeed(group, [&](std::string_view key) { return fmt::format("{} in {}", key, config.path); });
  for (const auto& key : deepspeed_keys_without_effect(group)) {
    config.values.emplace("deepspeed_config." + key, group.at(key));
  }
  const auto steps = group.find("gradient_accumulation_steps");
  if (steps != group.end()) config.values.insert(*steps);
  config.values.insert(settings.begin(), settings.end());
}

}  // namespace accelerate::env
