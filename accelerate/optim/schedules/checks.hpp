// SPDX-License-Identifier: Apache-2.0
// Private: argument checks of several schedules.
#pragma once

#include <cstdint>
#include <string_view>

namespace accelerate::optim {

// Each throws Error (usage) with schedule, argument, value and requirement.
void check_at_least(std::string_view schedule, std::string_view argument, int64_t value, int64_t least);
/// A negative factor would make rates negative. 0 is accepted, as in PyTorch.
void check_gamma(std::string_view schedule, double gamma);
/// \param above_0  If true, 0 is refused.
void check_up_to_1(std::string_view schedule, std::string_view argument, double value, bool above_0 = false);

}  // namespace accelerate::optim
