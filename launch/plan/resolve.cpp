// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/resolve.hpp"

#include <fmt/ranges.h>

#include <type_traits>

#include "accelerate/env/backends.hpp"
#include "accelerate/env/config_keys.hpp"
#include "accelerate/env/precedence.hpp"
#include "launch/plan/options_table.hpp"
#include "launch/plan/resolve_mesh.hpp"
#include "launch/plan/resolve_sharding.hpp"

namespace accelerate::launch {
namespace {

/// Resolves the launcher's own options, which the ranks do not read.
void resolve_own(const env::Variables& inherited, const env::Config& config, Resolved& result) {
  for_each_option([&](std::string_view /*group*/, const auto& row) {
    auto& option = row.of(result.options);
    const auto resolved = env::resolve_setting(row, option, inherited, config, "the command line");
    option = resolved.value;
    if (!resolved.conflict.empty()) result.conflicts.push_back(resolved.conflict);
  });
}

/// Removes values that the command line overrides: the number of local ranks, or a number of machines that differs
/// from a host list elsewhere.
void drop_overridden_settings(const LaunchOptions& given, Resolved& result) {
  auto& options = result.options;
  const auto drop = [&](std::string_view name, auto option, std::string_view because) {
    if (given.*option || !(options.*option)) return;
    result.conflicts.push_back(
        fmt::format("{} {} is not used: the command line has {}", name, *(options.*option), because));
    (options.*option).reset();
  };
  if (given.runner == "local") {
    drop("hosts", &LaunchOptions::hosts, "--runner local");
    drop("hostfile", &LaunchOptions::hostfile, "--runner local");
    drop("mpirun_hostfile", &LaunchOptions::mpirun_hostfile, "--runner local");
  }
  const auto listed = parse_ranks(options.ranks_per_machine.value_or(""));
  const auto machines = static_cast<int64_t>(listed.value_or(std::vector<int64_t>{}).size());
  if (listed && given.num_machines && *given.num_machines != machines) {
    drop("ranks_per_machine", &LaunchOptions::ranks_per_machine, fmt::format("--num_machines {}", *given.num_machines));
  } else if (listed && given.num_processes && machines == 1 && *given.num_processes != listed->front()) {
    drop("ranks_per_machine", &LaunchOptions::ranks_per_machine,
         fmt::format("--num_processes {}", *given.num_processes));
  }
}

/// The given options, completed with the defaults.
LaunchOptions with_defaults(LaunchOptions options, const env::Settings& settings) {
  const LaunchOptions& defaults = default_options();
  for_each_option([&](std::string_view /*group*/, const auto& row) {
    if (!row.of(options)) row.of(options) = row.of(defaults);
  });
  env::for_each_setting([&](const auto& row) {
    if constexpr (std::remove_cvref_t<decltype(row)>::has_default) row.of(options.settings) = row.of(settings);
  });
  return options;
}

/// Passes the effective settings of the config file to the ranks as variables, because other machines may not have the
/// file.
void take_settings_of_file(const env::Variables& inherited, const env::Config& config, const env::Settings& settings,
                           env::GivenSettings& given) {
  env::for_each_setting([&](const auto& row) {
    const auto text = env::find(config.values, std::string(row.key));
    if (!text || row.of(given) || env::find(inherited, std::string(row.variable))) return;
    row.of(given) = env::read_setting(row, *text, fmt::format("{} in {}", row.key, config.path));
  });
  if (given.cpu && *given.cpu != settings.cpu) given.cpu.reset();
  if (!settings.device) given.device.reset();
}

/// True if the number of ranks per machine follows from something other than a GPU index. Hosts without slots each
/// apply that number themselves. One GPU selected by index is for one rank.
bool gives_rank_count(const LaunchOptions& options) {
  return options.num_processes || options.ranks_per_machine || options.hosts || options.hostfile ||
         options.mpirun_hostfile;
}

}  // namespace

Resolved resolve_options(const LaunchOptions& options, const env::Variables& inherited, const env::Config& config) {
  Resolved result{.options = options};
  const auto [settings, conflicts] = env::weigh(options.settings, inherited, config, "the command line");
  result.conflicts = conflicts;
  result.timeout = settings.timeout;
  resolve_own(inherited, config, result);
  drop_overridden_settings(options, result);
  resolve_sharding(inherited, config, result);
  resolve_mesh(inherited, config, result);
  const auto unused = env::keys_without_meaning(config.values);
  if (!unused.empty()) {
    result.conflicts.push_back(
        fmt::format("{} has keys without effect here: {}", config.path, fmt::join(unused, ", ")));
  }
  env::GivenSettings& given = result.options.settings;
  take_settings_of_file(inherited, config, settings, given);
  if (settings.cpu || (settings.device && settings.device->is_cpu())) given.cpu = true;
  if (settings.allow_shared_gpus) given.allow_shared_gpus = true;
  if (settings.device && settings.device->index && !gives_rank_count(result.options)) {
    result.options.num_processes = value_of(result.options, &LaunchOptions::num_machines);
  }
  // A GPU backend in the settings is for ranks on GPUs, which use it anyway. Ranks on the CPU refuse it themselves.
  if (settings.backend && env::is_backend(*settings.backend, "cpu")) given.backend = settings.backend;
  result.values = with_defaults(result.options, settings);
  return result;
}

}  // namespace accelerate::launch
