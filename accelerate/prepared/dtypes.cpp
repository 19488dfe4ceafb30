// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/dtypes.hpp"

#include "accelerate/base/log.hpp"

namespace accelerate::prepared {

precision::Policy checked_policy(const precision::Policy& policy, at::Device device, const RankContext& place) {
  if (policy == precision::Policy{}) return policy;
  precision::check_precision_policy(policy, device, precision::low_precision_of(device), place);
  if (policy.scales_loss() && device.is_cpu() && place.rank == 0) {
    base::log_once(base::LogLevel::warning, place,
                   "mixed_precision: fp16 on the CPU is computed as requested, but slowly (BasicNet's step takes 11 "
                   "times float32's); bf16 is fast there");
  }
  return policy;
}

std::optional<precision::AutocastRegion> autocast_region(const AcceleratorState& shared, bool enabled, bool cache) {
  const auto& compute = shared.policy.compute;
  if (!compute) return std::nullopt;
  return precision::AutocastRegion{
      .device = shared.device.type(), .dtype = *compute, .enabled = enabled, .cache = cache};
}

}  // namespace accelerate::prepared
