// SPDX-License-Identifier: Apache-2.0
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>

#include "accelerate/base/closest_match.hpp"
#include "accelerate/env/config_file.hpp"
#include "accelerate/env/config_keys.hpp"
#include "accelerate/env/fsdp_table.hpp"
#include "accelerate/env/parallelism_table.hpp"
#include "accelerate/env/parse.hpp"
#include "accelerate/env/settings.hpp"
#include "accelerate/env/settings_table.hpp"
#include "accelerate/env/sharding_groups.hpp"
#include "accelerate/env/yaml_document.hpp"

namespace accelerate::env {
namespace {

template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  base::fail(ErrorKind::environment, {}, "settings", format, std::forward<Args>(args)...);
}

/// Keys of sharded training and of the mesh belong to a group.
void check_not_grouped(const std::string& key, const std::string& path) {
  if (key == "use_fsdp") refuse("{} has the key use_fsdp; set distributed_type to FSDP instead", path);
  for_each_fsdp_setting([&](const auto& row) {
    if (row.key != key) return;
    refuse("{} has {} at the top level, must be in fsdp_config, with distributed_type FSDP", path, key);
  });
  for_each_parallelism_setting([&](const auto& row) {
    if (row.key == key) refuse("{} has {} at the top level, must be in parallelism_config", path, key);
  });
  if (key != "zero_stage") return;
  refuse("{} has {} at the top level, must be in deepspeed_config, with distributed_type DEEPSPEED", path, key);
}

void check_known(const std::string& key, const std::string& path) {
  const auto known = known_keys();
  if (std::find(known.begin(), known.end(), key) != known.end()) return;
  check_not_grouped(key, path);
  const auto meant = base::closest_match(key, known);
  if (meant) refuse("{} has the unknown key '{}'; did you mean {}?", path, key, *meant);
  std::string all;
  for_each_setting([&](const auto& row) { all += (all.empty() ? "" : ", ") + std::string(row.key); });
  for (const auto launchers : launcher_keys()) all += ", " + std::string(launchers);
  refuse("{} has the unknown key '{}'; the known keys are {}", path, key, all);
}

bool is_foreign(const std::string& key) {
  const auto& all = foreign_keys();
  return std::any_of(all.begin(), all.end(), [&](const auto& each) { return each.key == key && each.setting.empty(); });
}

/// Groups that `accelerate config` writes as nested maps may also appear at the top level.
bool is_only_a_group(const std::string& key, const YAML::Node& value) {
  return key == "mpirun_config" && value.IsMap();
}

void read_entry(const std::string& key, const YAML::Node& value, Config& config) {
  if (value.IsNull() || ((value.IsMap() || value.IsSequence()) && value.size() == 0)) return;
  std::string text = "{...}";  // only the presence of another tool's key matters
  if (value.IsScalar()) {
    text = value.Scalar();
  } else if (!is_foreign(key)) {
    refuse("{} of {} is a list or a map, must be one value", key, config.path);
  }
  if (!config.values.emplace(key, text).second) refuse("{} has {} twice", config.path, key);
}

void read_map(const YAML::Node& map, Config& config, bool is_group = false) {
  for (const auto& entry : map) {
    const auto key = entry.first.IsScalar() ? entry.first.Scalar() : std::string();
    check_known(key, config.path);
    if (!is_group && is_only_a_group(key, entry.second)) {
      read_map(entry.second, config, true);
    } else {
      read_entry(key, entry.second, config);
    }
  }
}

ConfigGroup group_of(const YAML::Node& map, const std::string& name, const std::string& path) {
  ConfigGroup group;
  if (!map.IsDefined() || !map.IsMap()) return group;
  for (const auto& entry : map) {
    const auto key = entry.first.IsScalar() ? entry.first.Scalar() : std::string();
    const YAML::Node& value = entry.second;
    if (value.IsNull() || (value.IsScalar() && value.Scalar().empty())) continue;
    if (!group.emplace(key, value.IsScalar() ? value.Scalar() : "{...}").second) {
      refuse("{} has {} twice in {}", path, key, name);
    }
  }
  return group;
}

/// Reads the group that belongs to the kind of training. Groups of other kinds have no meaning.
void read_sharding(const YAML::Node& root, Config& config) {
  const auto type = find(config.values, "distributed_type");
  if (type != "FSDP" && type != "DEEPSPEED") return;
  const std::string name = type == "FSDP" ? "fsdp_config" : "deepspeed_config";
  config.values.erase(name);
  const ConfigGroup group = group_of(root[name], name, config.path);
  if (type == "FSDP") {
    add_fsdp_config(group, config);
  } else {
    add_deepspeed_config(group, config);
  }
}

/// Reads the group parallelism_config, which belongs to every kind of training.
void read_parallelism(const YAML::Node& root, Config& config) {
  const std::string name = "parallelism_config";
  if (config.values.erase(name) == 0) return;  // an empty group counts as not given
  if (!root[name].IsMap()) refuse("{} of {} is '{}', must be a map of sizes", name, config.path, root[name].Scalar());
  add_parallelism_config(group_of(root[name], name, config.path), config);
}

/// The kind of training is checked first, because the other keys may belong to that kind.
void check_kind(const YAML::Node& root, const std::string& path) {
  std::map<std::string, std::string> kind;
  for (const auto& entry : root) {
    if (!entry.first.IsScalar() || !entry.second.IsScalar()) continue;
    const auto key = entry.first.Scalar();
    if (key == "compute_environment" || key == "distributed_type") kind.emplace(key, entry.second.Scalar());
  }
  check_distributed_type(kind, path);
}

/// Renames Hugging Face Accelerate's key of a setting. This library's key takes precedence.
void rename(Config& config, const std::string& from, const std::string& to) {
  auto found = config.values.extract(from);
  if (!found.empty()) config.values.try_emplace(to, found.mapped());
}

/// Reads fp16, the predecessor of mixed_precision.
void read_fp16(Config& config) {
  auto found = config.values.extract("fp16");
  if (found.empty()) return;
  const auto flag = parse_bool(found.mapped());
  if (!flag) refuse("fp16 in {} is '{}', must be {}", config.path, found.mapped(), Flag::expected());
  if (*flag) config.values.try_emplace("mixed_precision", "fp16");
}

/// Drops the values that `accelerate config` writes for "not chosen".
void drop_unchosen(Config& config) {
  const std::array<std::pair<std::string, std::string>, 2> unchosen{{{"num_processes", "-1"}, {"gpu_ids", "all"}}};
  for (const auto& [key, value] : unchosen) {
    const auto found = config.values.find(key);
    if (found != config.values.end() && found->second == value) config.values.erase(found);
  }
}

}  // namespace

Config parse_config(std::string_view text, const std::string& path) {
  Config config{.path = path, .values = {}};
  const YAML::Node root = yaml_document(std::string(text), path, "settings");
  if (root.IsNull()) return config;
  if (!root.IsMap()) refuse("{} must contain lines like 'cpu: true'", path);
  check_kind(root, path);
  read_map(root, config);
  check_distributed_type(config.values, path);
  read_sharding(root, config);
  read_parallelism(root, config);
  rename(config, "use_cpu", "cpu");
  read_fp16(config);
  drop_unchosen(config);
  return config;
}

Config read_config_file(const std::string& path, std::string_view named_by) {
  errno = 0;
  std::ifstream file(path);
  std::ostringstream text;
  // A folder opens but cannot be read; an empty file leaves failbit on text only.
  if (file) text << file.rdbuf();
  if (!file || file.bad() || errno != 0) {
    base::fail(ErrorKind::io, {}, "settings", "cannot read {}, which {} names: {}", path, named_by,
               std::strerror(errno));
  }
  return parse_config(text.str(), path);
}

Config read_config(const Variables& variables) {
  const auto path = find(variables, "ACCELERATE_CONFIG_FILE");
  return path ? read_config_file(*path, "ACCELERATE_CONFIG_FILE") : Config{};
}

}  // namespace accelerate::env
