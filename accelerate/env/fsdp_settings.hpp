// SPDX-License-Identifier: Apache-2.0
// Settings of sharded training outside of the program: options of accelerate_launch, environment variables and the
// groups fsdp_config and deepspeed_config of a config file. fsdp_table.hpp defines their names and values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/env/process_env.hpp"
#include "accelerate/env/settings.hpp"

namespace accelerate::env {

/// Members have the names of Hugging Face Accelerate's options without fsdp_. Unset means "not given". Names are in
/// upper case, as in Accelerate's variables.
struct FsdpSettings {
  /// Enables sharded training. The other members have no effect without it.
  std::optional<bool> use_fsdp{};
  std::optional<std::string> sharding_strategy{};  ///< a name of kShardingStrategies
  std::optional<bool> reshard_after_forward{};
  std::optional<bool> forward_prefetch{};
  std::optional<int64_t> min_num_params{};
  std::optional<bool> use_orig_params{};
  std::optional<bool> limit_all_gathers{};
  std::optional<bool> sync_module_states{};
  std::optional<bool> offload_params{};
  std::optional<bool> activation_checkpointing{};
  std::optional<int64_t> version{};  ///< without effect
  std::optional<bool> cpu_ram_efficient_loading{};
  std::optional<bool> activation_checkpointing_offload{};
  std::optional<std::string> state_dict_type{};
  std::optional<std::string> backward_prefetch{};
  std::optional<std::string> auto_wrap_policy{};
  std::optional<std::vector<std::string>> transformer_layer_cls_to_wrap{};
  std::optional<std::string> ignored_modules{};

  bool operator==(const FsdpSettings&) const = default;
};

/// The resolved settings, and one sentence for every overridden value that differs.
struct FsdpResolution {
  FsdpSettings settings{};
  std::vector<std::string> conflicts{};
};

/// Precedence of every setting: given > environment > config file. Nothing but use_fsdp is read unless it is true. Pure
/// function.
///
/// \param given_by  Name of the source of `given` for messages.
/// \throws Error (environment) for an invalid variable or config value, with its source.
FsdpResolution weigh_fsdp(const FsdpSettings& given, const Variables& variables, const Config& config,
                          std::string_view given_by);

}  // namespace accelerate::env
