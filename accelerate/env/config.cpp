// SPDX-License-Identifier: Apache-2.0
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "accelerate/env/parse.hpp"
#include "accelerate/env/settings.hpp"
#include "accelerate/env/settings_table.hpp"

namespace accelerate::env {
namespace {

void check_known(const std::string& key, const std::string& path) {
  bool is_known = false;
  std::string known;
  for_each_setting([&](const auto& row) {
    is_known = is_known || row.key == key;
    known += (known.empty() ? "" : ", ") + std::string(row.key);
  });
  if (is_known) return;
  base::fail(ErrorKind::environment, {}, "settings", "{} has the unknown key '{}'; known are {}", path, key, known);
}

}  // namespace

Config parse_config(std::string_view text, const std::string& path) {
  Config config{.path = path, .values = {}};
  YAML::Node root;
  try {
    root = YAML::Load(std::string(text));
  } catch (const YAML::Exception& error) {
    base::fail(ErrorKind::environment, {}, "settings", "{} line {} is no YAML: {}", path, error.mark.line + 1,
               error.msg);
  }
  if (root.IsNull()) return config;
  if (!root.IsMap()) base::fail(ErrorKind::environment, {}, "settings", "{} must hold lines like 'cpu: true'", path);
  for (const auto& entry : root) {
    const auto key = entry.first.IsScalar() ? entry.first.Scalar() : std::string();
    check_known(key, path);
    if (entry.second.IsNull()) continue;
    if (!entry.second.IsScalar()) {
      base::fail(ErrorKind::environment, {}, "settings", "{} of {} is a list or a map, must be one value", key, path);
    }
    if (!config.values.emplace(key, entry.second.Scalar()).second) {
      base::fail(ErrorKind::environment, {}, "settings", "{} has {} twice", path, key);
    }
  }
  return config;
}

Config read_config(const Variables& variables) {
  const auto path = find(variables, "ACCELERATE_CONFIG_FILE");
  if (!path) return {};
  errno = 0;
  std::ifstream file(*path);
  std::ostringstream text;
  // A folder opens but cannot be read; an empty file leaves failbit on text only.
  if (file) text << file.rdbuf();
  if (!file || file.bad() || errno != 0) {
    base::fail(ErrorKind::io, {}, "settings", "cannot read {}, which ACCELERATE_CONFIG_FILE names: {}", *path,
               std::strerror(errno));
  }
  return parse_config(text.str(), *path);
}

}  // namespace accelerate::env
