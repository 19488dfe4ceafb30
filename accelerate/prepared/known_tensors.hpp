// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "accelerate/device/out_of_memory.hpp"
#include "accelerate/prepared/shared.hpp"

namespace accelerate::prepared {

/// Parameters, gradients and buffers of all prepared models, for an error about memory.
[[nodiscard]] std::vector<device::KnownTensor> known_tensors(Shared& shared);

}  // namespace accelerate::prepared
