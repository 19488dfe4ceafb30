// SPDX-License-Identifier: Apache-2.0
// The order of one rank's forwards and backwards in each schedule. Private.
#pragma once

#include <vector>

#include "accelerate/pipeline/schedule.hpp"

namespace accelerate::pipeline {

/// Returns only forwards and backwards. Arguments as for plan_step(); they must be valid.
[[nodiscard]] std::vector<Action> compute_order(Schedule schedule, int64_t rank, const Plan& sizes);

}  // namespace accelerate::pipeline
