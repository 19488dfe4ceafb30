// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/resolve_mesh.hpp"

#include "accelerate/env/parallelism_table.hpp"
#include "accelerate/env/precedence.hpp"

namespace accelerate::launch {

void resolve_mesh(const env::Variables& inherited, const env::Config& config, Resolved& result) {
  constexpr std::string_view from = "the command line";
  LaunchOptions& options = result.options;
  const auto use =
      env::resolve_setting(env::use_parallelism_row(), options.use_parallelism_config, inherited, config, from);
  options.use_parallelism_config = use.value;
  if (!use.conflict.empty()) result.conflicts.push_back(use.conflict);
  if (!use.value.value_or(false)) {
    env::for_each_parallelism_setting([&](const auto& row) {
      if (!row.of(options.parallelism)) return;
      fail(ErrorKind::usage, "{} is given, but there is no mesh; add --use_parallelism_config", row.option.name);
    });
    return;
  }
  const auto [mesh, conflicts] = env::weigh_parallelism(options.parallelism, inherited, config, from);
  options.parallelism = *mesh;
  result.conflicts.insert(result.conflicts.end(), conflicts.begin(), conflicts.end());
}

}  // namespace accelerate::launch
