// SPDX-License-Identifier: Apache-2.0
// Options of `accelerate launch` without a meaning for this launcher.
#pragma once

#include <optional>
#include <string_view>

namespace accelerate::launch {

/// Explains why an option of Accelerate does not exist here and names the replacement. Returns nothing for a name that
/// Accelerate does not have either.
///
/// \param name  Option name without dashes, with underscores.
std::optional<std::string_view> unsupported_reason(std::string_view name);

}  // namespace accelerate::launch
