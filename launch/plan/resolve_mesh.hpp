// SPDX-License-Identifier: Apache-2.0
// Combines the sizes of the mesh from the command line, the environment and the config file.
#pragma once

#include "accelerate/env/process_env.hpp"
#include "accelerate/env/settings.hpp"
#include "launch/plan/resolve.hpp"

namespace accelerate::launch {

/// Completes `result.options.parallelism` and adds the sentences for overridden values. Nothing but
/// use_parallelism_config is read unless it is true. Pure function.
/// \throws LaunchError (2) if the command line has sizes, and no source enables them.
/// \throws Error (environment) for an invalid value, with its source.
void resolve_mesh(const env::Variables& inherited, const env::Config& config, Resolved& result);

}  // namespace accelerate::launch
