// SPDX-License-Identifier: Apache-2.0
// Values as other programs read them.
#pragma once

#include <string>
#include <string_view>

#include "accelerate/tracking/values.hpp"

namespace accelerate::tracking {

/// Bytes that are no UTF-8 become U+FFFD.
[[nodiscard]] std::string valid_utf8(std::string_view text);

/// In quotes, escaped.
[[nodiscard]] std::string json_string(std::string_view text);

/// JSON text of a single value. Non-finite numbers become the strings "NaN", "Infinity" and "-Infinity", as in
/// protobuf's JSON format.
[[nodiscard]] std::string json_text(const Value& value);

/// Of one value that is no group: text as it is; nan, inf and -inf as C++, Python and R read them.
[[nodiscard]] std::string plain_text(const Value& value);

/// Seconds since 1970.
[[nodiscard]] double wall_time();

}  // namespace accelerate::tracking
