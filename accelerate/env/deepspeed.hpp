// SPDX-License-Identifier: Apache-2.0
// Private: DeepSpeed's options, of a config file or of the variables that `accelerate launch --use_deepspeed` sets, as
// settings of sharded training.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/env/process_env.hpp"

namespace accelerate::env {

/// Values by DeepSpeed's key: {"zero_stage", "3"}. An empty value counts as not given.
using DeepSpeedOptions = std::map<std::string, std::string>;
/// Returns the name of a key for messages: "zero_stage in a.yaml", "ACCELERATE_DEEPSPEED_ZERO_STAGE".
using DeepSpeedKeyName = std::function<std::string(std::string_view key)>;

/// Returns all keys of deepspeed_config except gradient_accumulation_steps.
std::vector<std::string> deepspeed_keys();
/// Returns the given keys that have no meaning here and do not change the training.
std::vector<std::string> deepspeed_keys_without_effect(const DeepSpeedOptions& options);

/// Returns the values of use_fsdp, fsdp_sharding_strategy and, if parameters are offloaded, fsdp_offload_params.
/// \throws Error (environment) for an invalid zero_stage and for a value that would change the training otherwise, with
///         the replacement.
std::map<std::string, std::string> translate_deepspeed(const DeepSpeedOptions& options, const DeepSpeedKeyName& name);

/// DeepSpeed's variables as variables of settings of sharded training.
struct DeepSpeedVariables {
  std::map<std::string_view, std::string> names;  ///< by the key of the setting
  Variables values;                               ///< by name
};

/// Empty unless ACCELERATE_USE_DEEPSPEED is true. Empty also if ACCELERATE_USE_FSDP is set, because accelerate_launch
/// passes the translated values to its ranks.
/// \throws as translate_deepspeed does
DeepSpeedVariables deepspeed_variables(const Variables& variables);

}  // namespace accelerate::env
