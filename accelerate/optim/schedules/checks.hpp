// SPDX-License-Identifier: Apache-2.0
// Private: arguments that several schedules refuse.
#pragma once

#include <cstdint>
#include <string_view>

namespace accelerate::optim {

// Each throws Error (usage) with schedule, argument, value and requirement.
void check_at_least(std::string_view schedule, std::string_view argument, int64_t value, int64_t least);
/// A factor of rates: a negative one would climb the loss. 0 is taken, as PyTorch does.
void check_gamma(std::string_view schedule, double gamma);
/// above_0: 0 itself is refused.
void check_up_to_1(std::string_view schedule, std::string_view argument, double value, bool above_0 = false);

}  // namespace accelerate::optim
