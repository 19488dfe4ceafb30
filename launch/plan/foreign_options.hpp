// SPDX-License-Identifier: Apache-2.0
// Options of `accelerate launch` that mean nothing here.
#pragma once

#include <optional>
#include <string_view>

namespace accelerate::launch {

/// Why there is no such option, and what there is instead; nothing for a name that Accelerate does not know either.
///
/// name   without dashes, with underscores
std::optional<std::string_view> why_foreign(std::string_view name);

}  // namespace accelerate::launch
