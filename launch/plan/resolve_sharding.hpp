// SPDX-License-Identifier: Apache-2.0
// Combines the settings of sharded training from the command line, the environment and the config file.
#pragma once

#include "accelerate/env/process_env.hpp"
#include "accelerate/env/settings.hpp"
#include "launch/plan/resolve.hpp"

namespace accelerate::launch {

/// Completes `result.options.fsdp` and adds the sentences for overridden values. Nothing but use_fsdp is read unless it
/// is true. Pure function. \throws LaunchError (2) if the command line has settings of sharded training, and no source
/// enables it. \throws Error (environment) for an invalid value, with its source.
void resolve_sharding(const env::Variables& inherited, const env::Config& config, Resolved& result);

}  // namespace accelerate::launch
