// SPDX-License-Identifier: Apache-2.0
// Resolves environment, settings, device and process group for an Accelerator.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "accelerate/comm/group.hpp"
#include "accelerate/env/process_env.hpp"
#include "accelerate/env/settings.hpp"

namespace accelerate::job {

struct JobContext {
  env::ProcessEnv process{};
  env::Settings settings{};
  comm::Group group{};
  at::Device device = at::kCPU;
  RankContext place{};
};

/// Combines the given settings with environment and config file, selects the device, sets the number of threads and
/// connects to the other ranks. On a thread of simulate() that thread's group is used.
JobContext start(const env::GivenSettings& given, bool force_process_group);

/// As start(), on an existing group: all ranks of a job, a subset, or ranks as threads. Ranks as threads compute on the
/// CPU unless a device is requested by name, and get their own number of threads only if it is given. The connection's
/// settings (backend, timeout, debug) are those of the group.
JobContext start_on_group(comm::Group group, const env::GivenSettings& given);

/// Returns this rank without a group: the rank of a thread of simulate(), otherwise the rank from the environment.
[[nodiscard]] int64_t current_rank();

/// Runs main on num_processes threads, one rank each. start() on such a thread uses that rank's group.
void simulate(int64_t num_processes, const std::function<void()>& main);

}  // namespace accelerate::job
