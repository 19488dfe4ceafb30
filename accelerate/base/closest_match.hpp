// SPDX-License-Identifier: Apache-2.0
// Suggests the intended name for a misspelled one.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::base {

/// Returns the known name with the smallest edit distance; the first one if there are several. Returns nothing if the
/// distance exceeds 3 or a third of the name's length.
std::optional<std::string> closest_match(std::string_view name, const std::vector<std::string>& known);

}  // namespace accelerate::base
