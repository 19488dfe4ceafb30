// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/start.hpp"

#include <optional>

#include "accelerate/device/choose.hpp"
#include "accelerate/device/threads.hpp"

namespace accelerate::prepared {
namespace {

// The rank that this thread plays in simulate().
thread_local std::optional<comm::Group> simulated;  // NOLINT: a thread's identity is what thread_local is for

env::Settings settings_of(const env::GivenSettings& given, const env::Variables& variables, const Place& place) {
  return env::resolve_settings(given, variables, env::read_config(variables), place);
}

// Ranks that share a machine share its cores; a rank alone keeps LibTorch's choice.
void set_threads(const env::ProcessEnv& process, const env::Settings& settings) {
  if (process.local_world_size == 1 && !settings.threads_per_rank) return;
  device::set_threads(
      device::threads_per_rank(device::physical_cores(), process.local_world_size, settings.threads_per_rank));
}

}  // namespace

Start start(const env::GivenSettings& given, bool force_process_group) {
  if (simulated) return start_on(*simulated, given);
  const env::Variables variables = env::current_variables();
  Start start;
  start.process = env::read(variables);
  start.place = {start.process.rank, start.process.world_size, base::host_name()};
  start.settings = settings_of(given, variables, start.place);
  start.device = device::choose(start.process, start.settings, device::gpu_count(), start.place);
  set_threads(start.process, start.settings);
  std::optional<at::Device> gpu;
  if (start.device.is_cuda()) gpu = start.device;
  start.group = comm::connect(start.process, {.backend = start.settings.backend,
                                              .timeout = start.settings.timeout,
                                              .device = gpu,
                                              .debug = start.settings.debug,
                                              .force_group = force_process_group});
  return start;
}

Start start_on(comm::Group group, const env::GivenSettings& given) {
  const env::Variables variables = env::current_variables();
  Start start;
  start.place = group.place();
  start.settings = settings_of(given, variables, start.place);
  if (group.backend() == "threads") {
    // One process, its ranks count as on one machine, and their tensors are the CPU's.
    start.process = {
        .rank = group.rank(), .world_size = group.size(), .local_rank = group.rank(), .local_world_size = group.size()};
  } else {
    start.process = env::read(variables);
    start.device = device::choose(start.process, start.settings, device::gpu_count(), start.place);
  }
  start.group = std::move(group);
  return start;
}

void simulate(int64_t num_processes, const std::function<void()>& main) {
  comm::run_threads(num_processes, [&](const comm::Group& group) {
    simulated = group;
    try {
      main();
    } catch (...) {
      simulated.reset();
      throw;
    }
    simulated.reset();
  });
}

}  // namespace accelerate::prepared
