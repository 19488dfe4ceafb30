// SPDX-License-Identifier: Apache-2.0
#include "accelerate/job/start.hpp"

#include <algorithm>
#include <optional>

#include "accelerate/base/log.hpp"
#include "accelerate/device/cpu_threads.hpp"
#include "accelerate/device/device_selection.hpp"
#include "accelerate/device/math_modes.hpp"

namespace accelerate::job {
namespace {

// The group of this thread's rank inside simulate().
thread_local std::optional<comm::Group> simulated;  // NOLINT: a thread's identity is what thread_local is for

env::Settings settings_of(const env::GivenSettings& given, const env::Variables& variables, const RankContext& place) {
  return env::resolve_settings(given, variables, env::read_config(variables), place);
}

// The ranks of a machine share its cores. A smaller number of threads that the program has set is kept.
void set_threads(const env::ProcessEnv& process, const env::Settings& settings) {
  const int64_t share =
      device::threads_per_rank(device::physical_cores(), process.local_world_size, settings.threads_per_rank);
  device::set_threads(settings.threads_per_rank ? share : std::min(share, device::threads()));
}

// Ranks as threads count as ranks of one machine.
env::ProcessEnv process_of_thread(const comm::Group& group) {
  return {
      .rank = group.rank(), .world_size = group.size(), .local_rank = group.rank(), .local_world_size = group.size()};
}

at::Device chosen(const JobContext& job) {
  const at::Device device = device::select_device(job.process, job.settings, device::accelerator(), job.place);
  device::set_current_device(device);
  return device;
}

}  // namespace

JobContext start(const env::GivenSettings& given, bool force_process_group) {
  if (simulated) return start_on_group(*simulated, given);
  const env::Variables variables = env::current_variables();
  JobContext start;
  start.process = env::read_process_env(variables);
  start.place = {start.process.rank, start.process.world_size, base::host_name()};
  start.settings = settings_of(given, variables, start.place);
  start.device = chosen(start);
  set_threads(start.process, start.settings);
  device::set_math_modes(start.settings.float32_matmul_precision, start.settings.cudnn_benchmark);
  base::log(base::LogLevel::debug, start.place, "start: {}, {} thread(s)", start.device.str(), device::threads());
  std::optional<at::Device> accelerator;
  if (!start.device.is_cpu()) accelerator = start.device;
  start.group = comm::connect(start.process, {.backend = start.settings.backend,
                                              .timeout = start.settings.timeout,
                                              .device = accelerator,
                                              .debug = start.settings.debug,
                                              .force_group = force_process_group});
  return start;
}

JobContext start_on_group(comm::Group group, const env::GivenSettings& given) {
  const env::Variables variables = env::current_variables();
  JobContext start;
  start.place = group.place();
  start.settings = settings_of(given, variables, start.place);
  if (group.backend().ends_with("threads")) {
    start.process = process_of_thread(group);
    // Ranks as threads simulate a job on the CPU, and use an accelerator only on request.
    if (group.device()) {
      start.device = *group.device();
      device::set_current_device(start.device);
    } else if (start.settings.device) {
      start.device = chosen(start);
      if (!start.device.is_cpu()) group = comm::with_device(group, start.device);
    }
    if (start.settings.threads_per_rank) device::set_threads(*start.settings.threads_per_rank);
  } else {
    start.process = env::read_process_env(variables);
    start.device = chosen(start);
    if (!start.device.is_cpu() && !group.device()) group = comm::with_device(group, start.device);
    set_threads(start.process, start.settings);
  }
  device::set_math_modes(start.settings.float32_matmul_precision, start.settings.cudnn_benchmark);
  start.group = std::move(group);
  return start;
}

int64_t current_rank() { return simulated ? simulated->rank() : env::read_process_env(env::current_variables()).rank; }

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

}  // namespace accelerate::job
