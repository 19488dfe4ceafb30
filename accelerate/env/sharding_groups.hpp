// SPDX-License-Identifier: Apache-2.0
// Private: the groups of a config file: fsdp_config, deepspeed_config and parallelism_config.
#pragma once

#include <map>
#include <string>

#include "accelerate/env/settings.hpp"

namespace accelerate::env {

/// Keys and values of one group. An empty value counts as not given.
using ConfigGroup = std::map<std::string, std::string>;

/// Adds the settings of fsdp_config and use_fsdp to the config's values. A key may lack the prefix fsdp_, as in Hugging
/// Face Accelerate.
/// \throws Error (environment) for an unknown key.
void add_fsdp_config(const ConfigGroup& group, Config& config);

/// Adds the sharding strategy of zero_stage, gradient_accumulation_steps and use_fsdp to the config's values. Other
/// keys that do not change the training are added as "deepspeed_config.KEY", a key without a meaning here. \throws
/// Error (environment) for an unknown key, an invalid zero_stage, or a key that would change the training, with
///         the replacement.
void add_deepspeed_config(const ConfigGroup& group, Config& config);

/// Adds the sizes of parallelism_config and use_parallelism_config to the config's values. A key may lack the prefix
/// parallelism_config_. \throws Error (environment) for an unknown key.
void add_parallelism_config(const ConfigGroup& group, Config& config);

}  // namespace accelerate::env
