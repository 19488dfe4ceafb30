// SPDX-License-Identifier: Apache-2.0
// For a name with a typing error: the known one that was probably meant.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::base {

/// The known name that the fewest letters (changed, missing, added, two exchanged) make of this one; the first of
/// several. Nothing where the best needs more than a third of the letters, or more than three.
std::optional<std::string> nearest(std::string_view name, const std::vector<std::string>& known);

}  // namespace accelerate::base
