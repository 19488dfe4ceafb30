// SPDX-License-Identifier: Apache-2.0
// Text forms of values for other programs.
#pragma once

#include <string>
#include <string_view>

#include "accelerate/tracking/values.hpp"

namespace accelerate::tracking {

/// Replaces invalid UTF-8 by U+FFFD.
[[nodiscard]] std::string valid_utf8(std::string_view text);

/// Returns the text as a JSON string with quotes and escapes.
[[nodiscard]] std::string json_string(std::string_view text);

/// JSON text of a single value. Non-finite numbers become the strings "NaN", "Infinity" and "-Infinity", as in
/// protobuf's JSON format.
[[nodiscard]] std::string json_text(const Value& value);

/// Returns plain text of a value that is not a group. Texts are unchanged; non-finite numbers are nan, inf and -inf,
/// which C++, Python and R can parse.
[[nodiscard]] std::string plain_text(const Value& value);

/// Returns the time in seconds since 1970.
[[nodiscard]] double wall_time();

}  // namespace accelerate::tracking
