// SPDX-License-Identifier: Apache-2.0
// What must hold of an optimizer's groups of parameters, and what torch::optim does not look at.
#pragma once

#include <string_view>

#include "accelerate/base/error.hpp"

namespace torch::optim {
class Optimizer;
}

namespace accelerate::optim {

/// Throws Error (usage) where a parameter is listed twice, in two groups or in one: it would be stepped on twice.
///
/// asked_by   names the operation in the message
void check_groups(const torch::optim::Optimizer& optimizer, const Place& place, std::string_view asked_by);

}  // namespace accelerate::optim
