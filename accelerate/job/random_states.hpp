// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "accelerate/comm/group.hpp"
#include "accelerate/device/seed.hpp"

namespace accelerate::job {

/// Broadcasts rank 0's states of LibTorch's default generators (CPU and this rank's accelerator). Collective.
void synchronize_rng_states(const comm::Group& group, at::Device device);

/// Seeds the default generators of this rank; the rank comes from the environment or simulate().
void set_seed(uint64_t seed, const device::SeedOptions& options = {});

}  // namespace accelerate::job
