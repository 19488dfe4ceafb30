// SPDX-License-Identifier: Apache-2.0
// Resolves the dtypes that an Accelerator computes in.
#pragma once

#include <optional>

#include "accelerate/precision/autocast.hpp"
#include "accelerate/prepared/accelerator_state.hpp"

namespace accelerate::prepared {

/// Returns the validated policy. Warns once that fp16 is slow on the CPU.
/// \throws Error as precision::check_precision_policy() does.
precision::Policy checked_policy(const precision::Policy& policy, at::Device device, const RankContext& place);

/// Autocast region for a block of user code. Unset if the policy has no compute dtype.
std::optional<precision::AutocastRegion> autocast_region(const AcceleratorState& shared, bool enabled, bool cache);

}  // namespace accelerate::prepared
