// SPDX-License-Identifier: Apache-2.0
// Parses JSON from files of other programs.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "accelerate/archive/origin.hpp"

namespace accelerate::archive {

struct JsonLimits {
  /// Maximum nesting depth of objects and arrays.
  size_t depth = 20;
  /// Maximum number of values in one array. If unset, unlimited.
  std::optional<size_t> array{};
};

/// Parses JSON in time and memory proportional to the text.
///
/// \param what  "header", for errors.
/// \throws Error (data) for invalid JSON, exceeded limits, or a duplicate name in an object, which parsers interpret
///         differently.
[[nodiscard]] nlohmann::json parse_json(std::string_view text, std::string_view what, const JsonLimits& limits,
                                        const Origin& origin);

}  // namespace accelerate::archive
