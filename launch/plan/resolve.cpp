// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/resolve.hpp"

#include "accelerate/env/backends.hpp"

namespace accelerate::launch {

Resolved resolve(const LaunchOptions& options, const env::Variables& inherited, const env::Config& config) {
  Resolved result{.options = options};
  // What the file loses is rank 0's to say.
  result.conflicts = env::weigh(options.settings, inherited, {}, "the command line").conflicts;
  const env::Settings settings = env::weigh(options.settings, inherited, config, "the command line").settings;
  result.timeout = settings.timeout;
  env::GivenSettings& given = result.options.settings;
  if (settings.cpu || (settings.device && settings.device->is_cpu())) given.cpu = true;
  // One GPU by its number is for one rank.
  if (settings.device && settings.device->index && !result.options.num_processes) result.options.num_processes = 1;
  // A GPU's backend from there is for ranks on GPUs, which use it anyway; those on the CPU refuse it themselves.
  if (settings.backend && env::is_backend(*settings.backend, "cpu")) given.backend = settings.backend;
  return result;
}

}  // namespace accelerate::launch
