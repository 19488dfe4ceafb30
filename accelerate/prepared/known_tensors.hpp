// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "accelerate/device/out_of_memory.hpp"
#include "accelerate/prepared/shared.hpp"

namespace accelerate::prepared {

/// For an error about memory: parameters with their gradients and float32 masters, and buffers of all prepared models;
/// what the optimizers that FusedStep knows remember of them ("exp_avg of fc1.weight [128, 9216] Float"). Nothing is
/// allocated on a device for it. Kinds are these, and an optimizer's is its name: each is added up by itself.
[[nodiscard]] std::vector<device::KnownTensor> known_tensors(Shared& shared);

}  // namespace accelerate::prepared
