// SPDX-License-Identifier: Apache-2.0
#include "launch/settle.hpp"

#include <fmt/format.h>

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

Settled settle(const LaunchOptions& options, const env::Variables& inherited, const env::Config& config) {
  Settled result{.options = options};
  env::GivenSettings from_options = given(options);
  env::Variables variables = inherited;
  env::Config file = config;
  if (options.backend == "nccl") {
    // The setting names the CPU's backend, and nccl is none; it wins all the same.
    const auto lost = variables.find("ACCELERATE_BACKEND");
    if (lost != variables.end() && !lost->second.empty()) {
      result.conflicts.push_back(
          fmt::format("backend is nccl from the command line; not used: {} in ACCELERATE_BACKEND", lost->second));
    }
    from_options.backend.reset();
    variables.erase("ACCELERATE_BACKEND");
    file.values.erase("backend");
  }
  // What the file loses is rank 0's to say.
  for (const auto& conflict : env::weigh(from_options, variables, {}, "the command line").conflicts) {
    result.conflicts.push_back(conflict);
  }
  const env::Settings settings = env::weigh(from_options, variables, file, "the command line").settings;
  result.options.cpu = settings.cpu || (settings.torch_device && !settings.torch_device->cuda);
  if (!options.backend) result.options.backend = settings.backend;
  return result;
}

}  // namespace accelerate::launch
