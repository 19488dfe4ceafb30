// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/resolve.hpp"

namespace accelerate::launch {
namespace {

env::GivenSettings given(const LaunchOptions& options) {
  env::GivenSettings given{.gradient_accumulation_steps = options.gradient_accumulation_steps,
                           .backend = options.backend,
                           .threads_per_rank = options.num_cpu_threads_per_process};
  if (options.cpu) given.cpu = true;
  if (options.debug) given.debug = true;
  return given;
}

}  // namespace

Resolved resolve(const LaunchOptions& options, const env::Variables& inherited, const env::Config& config) {
  Resolved result{.options = options};
  const env::GivenSettings from_options = given(options);
  // What the file loses is rank 0's to say.
  result.conflicts = env::weigh(from_options, inherited, {}, "the command line").conflicts;
  const env::Settings settings = env::weigh(from_options, inherited, config, "the command line").settings;
  result.timeout = settings.timeout;
  result.options.cpu = settings.cpu || (settings.torch_device && settings.torch_device->is_cpu());
  // nccl from there is for ranks on GPUs, which use it anyway; those on the CPU refuse it themselves.
  if (!options.backend && settings.backend != "nccl") result.options.backend = settings.backend;
  return result;
}

}  // namespace accelerate::launch
