// SPDX-License-Identifier: Apache-2.0
// The table of the mesh's sizes, with the options and variables of Hugging Face Accelerate 1.15. Its rows have the form
// of the settings table. The key of a row belongs to parallelism_config in a config file.
#pragma once

#include <string_view>

#include "accelerate/env/fsdp_types.hpp"
#include "accelerate/env/parallelism_config.hpp"
#include "accelerate/env/settings_table.hpp"

namespace accelerate::env {

/// Row of the flag that enables the sizes of the environment and of the config file.
struct UseParallelismConfig {
  std::optional<bool> use_parallelism_config{};
};

inline auto use_parallelism_row() {
  return Setting{.name = "use_parallelism_config",
                 .key = "use_parallelism_config",
                 .variable = "ACCELERATE_USE_PARALLELISM_CONFIG",
                 .option = {"use_parallelism_config", "", "Train on a mesh of several kinds of parallelism."},
                 .type = TrueOrFalse{},
                 .member = [](auto& all) { return &all.use_parallelism_config; }};
}

/// Calls each(row) for every size, in the order of ParallelismConfig. A size that must be 1 has no help text.
template <typename Each>
void for_each_parallelism_setting(Each&& each) {
  const auto size = [&](std::string_view name, std::string_view key, std::string_view variable, std::string_view help,
                        auto member) {
    each(Setting{.name = name,
                 .key = key,
                 .variable = variable,
                 .option = {key, "N", std::string(help)},
                 .type = Integer{.lowest = 1},
                 .default_value = int64_t{1},
                 .member = member});
  };
  size("dp_replicate_size", "parallelism_config_dp_replicate_size", "PARALLELISM_CONFIG_DP_REPLICATE_SIZE",
       "Data parallel ranks with whole parameters.", [](auto& all) { return &all.dp_replicate_size; });
  size("dp_shard_size", "parallelism_config_dp_shard_size", "PARALLELISM_CONFIG_DP_SHARD_SIZE",
       "Data parallel ranks over which parameters are sharded.", [](auto& all) { return &all.dp_shard_size; });
  size("tp_size", "parallelism_config_tp_size", "PARALLELISM_CONFIG_TP_SIZE", "Ranks of a tensor parallel group.",
       [](auto& all) { return &all.tp_size; });
  size("cp_size", "parallelism_config_cp_size", "PARALLELISM_CONFIG_CP_SIZE", "Ranks of a context parallel group.",
       [](auto& all) { return &all.cp_size; });
  size("sp_size", "parallelism_config_sp_size", "PARALLELISM_CONFIG_SP_SIZE", "",
       [](auto& all) { return &all.sp_size; });
  size("pp_size", "parallelism_config_pp_size", "PARALLELISM_CONFIG_PP_SIZE", "Pipeline stages.",
       [](auto& all) { return &all.pp_size; });
}

}  // namespace accelerate::env
