// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "accelerate/device/out_of_memory_error.hpp"
#include "accelerate/prepared/accelerator_state.hpp"

namespace accelerate::prepared {

/// Lists tensors for an out-of-memory error: parameters, gradients, float32 masters and buffers of all prepared models,
/// and the state of optimizers with a fused step ("exp_avg of fc1.weight [128, 9216] Float"). No device memory is
/// allocated. Each kind is summed separately; the kind of optimizer state is the optimizer's name.
[[nodiscard]] std::vector<device::MemoryEntry> memory_inventory(AcceleratorState& shared);

}  // namespace accelerate::prepared
