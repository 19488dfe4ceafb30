// SPDX-License-Identifier: Apache-2.0
// What an Accelerator computes in, found once.
#pragma once

#include <optional>

#include "accelerate/precision/autocast.hpp"
#include "accelerate/prepared/shared.hpp"

namespace accelerate::prepared {

/// The policy. Throws Error as precision::check(); fp16 on the CPU is said to be slow, once.
precision::Policy checked_policy(const precision::Policy& policy, at::Device device, const Place& place);

/// Of a block of user code; unset: there is nothing to change.
std::optional<precision::AutocastRegion> autocast_region(const Shared& shared, bool enabled, bool cache);

}  // namespace accelerate::prepared
