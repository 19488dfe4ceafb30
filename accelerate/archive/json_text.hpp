// SPDX-License-Identifier: Apache-2.0
// JSON that somebody else wrote.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "accelerate/archive/origin.hpp"

namespace accelerate::archive {

struct JsonLimits {
  /// Objects and arrays within one another.
  size_t depth = 20;
  /// Values in one array. Unset: as many as the text has.
  std::optional<size_t> array{};
};

/// The value, in time and memory that grow with the text alone.
///
/// what   "header", for errors
/// Throws Error (data) for what is not JSON, is beyond the limits, or names something twice in an object: parsers
/// differ in which of two counts.
[[nodiscard]] nlohmann::json parse_json(std::string_view text, std::string_view what, const JsonLimits& limits,
                                        const Origin& origin);

}  // namespace accelerate::archive
