// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "accelerate/comm/group.hpp"

namespace accelerate::job {

/// Rank 0's states of LibTorch's default generators (CPU, this rank's GPU) go to all ranks. Collective.
void synchronize_rng_states(const comm::Group& group, at::Device device);

}  // namespace accelerate::job
