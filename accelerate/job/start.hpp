// SPDX-License-Identifier: Apache-2.0
// What an Accelerator finds out before it can be one: the job, the settings, the device, the peers.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "accelerate/comm/group.hpp"
#include "accelerate/env/process_env.hpp"
#include "accelerate/env/settings.hpp"

namespace accelerate::job {

struct Job {
  env::ProcessEnv process{};
  env::Settings settings{};
  comm::Group group{};
  at::Device device = at::kCPU;
  Place place{};
};

/// Reads environment and config file under what the program gave, chooses the device, sets the threads of this rank
/// and meets the other ranks. On a thread of simulate() the group is that thread's.
Job start(const env::GivenSettings& given, bool force_process_group);

/// The same on a group that exists already: all of a job, a part of it, or ranks as threads. Those compute on the CPU
/// unless a device is asked for by name, and get threads of their own number only where one is given.
/// What connects ranks (backend, timeout, debug) is the group's, not given's.
Job start_on(comm::Group group, const env::GivenSettings& given);

/// This rank, before there is a group: of the thread of simulate(), else of the environment.
[[nodiscard]] int64_t rank_here();

/// Runs main on threads, each a rank: start() called on them finds their group.
void simulate(int64_t num_processes, const std::function<void()>& main);

}  // namespace accelerate::job
