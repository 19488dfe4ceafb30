// SPDX-License-Identifier: Apache-2.0
#include "launch/plan.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace accelerate::launch {
namespace {

/// The place of a process in some other job: torchrun's, MPI's. Half of it would contradict ours.
bool belongs_to_another_launcher(std::string_view name) {
  constexpr std::array prefixes{"TORCHELASTIC_", "OMPI_COMM_", "OMPI_UNIVERSE_", "PMIX_", "PMI_", "MV2_COMM_WORLD_"};
  constexpr std::array names{"GROUP_RANK",      "GROUP_WORLD_SIZE", "ROLE_RANK",      "ROLE_NAME",
                             "ROLE_WORLD_SIZE", "MPI_LOCALRANKID",  "MPI_LOCALNRANKS"};
  return std::any_of(prefixes.begin(), prefixes.end(), [&](auto prefix) { return name.starts_with(prefix); }) ||
         std::find(names.begin(), names.end(), name) != names.end();
}

env::Variables settings(const LaunchOptions& options, const Machine& machine, int64_t ranks) {
  env::Variables result;
  if (options.cpu) result["ACCELERATE_USE_CPU"] = "1";
  if (options.debug) result["ACCELERATE_DEBUG_MODE"] = "1";
  if (options.backend) result["ACCELERATE_BACKEND"] = *options.backend;
  if (options.gradient_accumulation_steps) {
    result["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] = std::to_string(*options.gradient_accumulation_steps);
  }
  result["OMP_NUM_THREADS"] = std::to_string(
      options.num_cpu_threads_per_process.value_or(std::max<int64_t>(1, machine.physical_cores / ranks)));
  return result;
}

}  // namespace

int64_t number_of_processes(const LaunchOptions& options, const Machine& machine) {
  return options.num_processes.value_or(options.cpu ? 1 : std::max<int64_t>(1, machine.gpus));
}

LaunchPlan plan(const LaunchOptions& options, const Machine& machine, const env::Variables& inherited, int64_t port) {
  const int64_t ranks = number_of_processes(options, machine);
  env::Variables common = inherited;
  std::erase_if(common, [](const auto& variable) { return belongs_to_another_launcher(variable.first); });
  for (const auto& [name, value] : settings(options, machine, ranks)) {
    const bool users_own = name == "OMP_NUM_THREADS" && !options.num_cpu_threads_per_process;
    if (!users_own || !common.contains(name)) common[name] = value;
  }
  LaunchPlan result;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    WorkerPlan worker{.rank = rank, .command = options.command, .environment = common};
    auto& variables = worker.environment;
    variables["RANK"] = variables["LOCAL_RANK"] = std::to_string(rank);
    variables["WORLD_SIZE"] = variables["LOCAL_WORLD_SIZE"] = std::to_string(ranks);
    variables["MASTER_ADDR"] = "127.0.0.1";
    variables["MASTER_PORT"] = std::to_string(port);
    result.workers.push_back(std::move(worker));
  }
  return result;
}

}  // namespace accelerate::launch
