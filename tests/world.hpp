// SPDX-License-Identifier: Apache-2.0
// The group of all ranks for rank tests: connected once, from the environment, and closed by rank_main.cpp.
#pragma once

#include <functional>

#include "accelerate/comm/group.hpp"
#include "accelerate/env/process_env.hpp"

namespace testing {

/// The job as the launcher described it.
accelerate::env::ProcessEnv process_env();

/// With this rank's GPU, if it should have one; its tensors then use nccl. With ACCELERATE_TEST_NCCL (set by
/// bench/gpu.sh) also in a job with one rank.
accelerate::comm::ConnectOptions connect_options();

/// All ranks of the job. Every rank test runs the same cases in the same order, so they can share it.
const accelerate::comm::Group& world();

/// Runs a check of pipelines with all ranks, unless they have GPUs: the layers of a pipeline move to the device of its
/// group, and these checks compare CPU tensors. tests/gpu/parallel_ranks.cpp trains pipelines on GPUs.
void with_cpu_ranks(const std::function<void(const accelerate::comm::Group&)>& check);

}  // namespace testing
