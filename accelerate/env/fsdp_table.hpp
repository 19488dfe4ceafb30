// SPDX-License-Identifier: Apache-2.0
// The table of settings of sharded training, with the options and variables of Hugging Face Accelerate 1.15. Its rows
// have the form of the settings table. The key of a row belongs to fsdp_config in a config file.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "accelerate/env/fsdp_settings.hpp"
#include "accelerate/env/fsdp_types.hpp"
#include "accelerate/env/settings_table.hpp"

namespace accelerate::env {

/// The first four in the order of DeepSpeed's zero_stage; with PyTorch's numbers.
inline constexpr std::array<NumberedName::Row, 6> kShardingStrategies{{{"NO_SHARD", "3"},
                                                                       {"SHARD_OPTIM_OP"},
                                                                       {"SHARD_GRAD_OP", "2"},
                                                                       {"FULL_SHARD", "1"},
                                                                       {"HYBRID_SHARD", "4"},
                                                                       {"HYBRID_SHARD_ZERO2", "5"}}};
/// DeepSpeed's default.
inline constexpr int64_t kDefaultZeroStage = 2;
inline constexpr Integer kZeroStage{0, 3};

/// \param stage  0 to 3.
inline std::string_view strategy_of_zero_stage(int64_t stage) {
  return kShardingStrategies.at(static_cast<size_t>(stage)).name;
}

inline constexpr std::array<NumberedName::Row, 2> kStateDictTypes{
    {{"FULL_STATE_DICT", "1"}, {"SHARDED_STATE_DICT", "3"}}};
inline constexpr std::array<NumberedName::Row, 3> kBackwardPrefetches{
    {{"BACKWARD_PRE", "1"}, {"BACKWARD_POST", "2"}, {"NO_PREFETCH", "3"}}};
inline constexpr std::array<NumberedName::Row, 3> kAutoWrapPolicies{
    {{"TRANSFORMER_BASED_WRAP"}, {"SIZE_BASED_WRAP"}, {"NO_WRAP"}}};

/// Calls each(row) for every setting; use_fsdp is the first. A row without a help text has an option that the help page
/// omits.
template <typename Each>
void for_each_fsdp_setting(Each&& each) {
  // A setting of Accelerate that needs no line in the help page.
  const auto further = [&](std::string_view name, std::string_view key, std::string_view variable, auto type,
                           auto member) {
    each(Setting{
        .name = name, .key = key, .variable = variable, .option = {key, "VALUE", ""}, .type = type, .member = member});
  };
  each(Setting{.name = "use_fsdp",
               .key = "use_fsdp",
               .variable = "ACCELERATE_USE_FSDP",
               .option = {"use_fsdp", "", "Sharded training: divide the training state over the ranks."},
               .type = TrueOrFalse{},
               .member = [](auto& all) { return &all.use_fsdp; }});
  each(Setting{.name = "sharding_strategy",
               .key = "fsdp_sharding_strategy",
               .variable = "FSDP_SHARDING_STRATEGY",
               .option = {"fsdp_sharding_strategy", "NAME", "FULL_SHARD, HYBRID_SHARD, SHARD_GRAD_OP, SHARD_OPTIM_OP."},
               .type = NumberedName{kShardingStrategies},
               .default_value = DerivedDefault{"FULL_SHARD"},
               .member = [](auto& all) { return &all.sharding_strategy; }});
  each(Setting{
      .name = "reshard_after_forward",
      .key = "fsdp_reshard_after_forward",
      .variable = "FSDP_RESHARD_AFTER_FORWARD",
      .option = {"fsdp_reshard_after_forward", "BOOL", "If false, parameters stay whole until the backward ends."},
      .type = ReshardAfterForward{},
      .default_value = DerivedDefault{"true"},
      .member = [](auto& all) { return &all.reshard_after_forward; }});
  each(Setting{.name = "forward_prefetch",
               .key = "fsdp_forward_prefetch",
               .variable = "FSDP_FORWARD_PREFETCH",
               .option = {"fsdp_forward_prefetch", "BOOL", "Gather parameters before they are used."},
               .type = TrueOrFalse{},
               .default_value = DerivedDefault{"true"},
               .member = [](auto& all) { return &all.forward_prefetch; }});
  each(Setting{.name = "min_num_params",
               .key = "fsdp_min_num_params",
               .variable = "FSDP_MIN_NUM_PARAMS",
               .option = {"fsdp_min_num_params", "N", "Least number of elements of a shard unit."},
               .type = Integer{.lowest = 1},
               .default_value = DerivedDefault{"1 MB"},
               .member = [](auto& all) { return &all.min_num_params; }});
  further("use_orig_params", "fsdp_use_orig_params", "FSDP_USE_ORIG_PARAMS", TrueOrFalse{},
          [](auto& all) { return &all.use_orig_params; });
  further("limit_all_gathers", "fsdp_limit_all_gathers", "FSDP_LIMIT_ALL_GATHERS", TrueOrFalse{},
          [](auto& all) { return &all.limit_all_gathers; });
  further("sync_module_states", "fsdp_sync_module_states", "FSDP_SYNC_MODULE_STATES", TrueOrFalse{},
          [](auto& all) { return &all.sync_module_states; });
  further("offload_params", "fsdp_offload_params", "FSDP_OFFLOAD_PARAMS", TrueOrFalse{},
          [](auto& all) { return &all.offload_params; });
  further("activation_checkpointing", "fsdp_activation_checkpointing", "FSDP_ACTIVATION_CHECKPOINTING", TrueOrFalse{},
          [](auto& all) { return &all.activation_checkpointing; });
  further("version", "fsdp_version", "FSDP_VERSION", Integer{1, 2}, [](auto& all) { return &all.version; });
  further("cpu_ram_efficient_loading", "fsdp_cpu_ram_efficient_loading", "FSDP_CPU_RAM_EFFICIENT_LOADING",
          TrueOrFalse{}, [](auto& all) { return &all.cpu_ram_efficient_loading; });
  further("activation_checkpointing_offload", "fsdp_activation_checkpointing_offload",
          "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", OnlyFalse{"activations stay on the device"},
          [](auto& all) { return &all.activation_checkpointing_offload; });
  further("state_dict_type", "fsdp_state_dict_type", "FSDP_STATE_DICT_TYPE",
          NumberedName{kStateDictTypes, "; files of LOCAL_STATE_DICT fit one number of ranks only"},
          [](auto& all) { return &all.state_dict_type; });
  further("backward_prefetch", "fsdp_backward_prefetch", "FSDP_BACKWARD_PREFETCH", NumberedName{kBackwardPrefetches},
          [](auto& all) { return &all.backward_prefetch; });
  further("auto_wrap_policy", "fsdp_auto_wrap_policy", "FSDP_AUTO_WRAP_POLICY", NumberedName{kAutoWrapPolicies},
          [](auto& all) { return &all.auto_wrap_policy; });
  further("transformer_layer_cls_to_wrap", "fsdp_transformer_layer_cls_to_wrap", "FSDP_TRANSFORMER_CLS_TO_WRAP",
          NameList{}, [](auto& all) { return &all.transformer_layer_cls_to_wrap; });
  further("ignored_modules", "fsdp_ignored_modules", "FSDP_IGNORED_MODULES",
          NotSupported{"all parameters of a prepared model are sharded"},
          [](auto& all) { return &all.ignored_modules; });
}

}  // namespace accelerate::env
