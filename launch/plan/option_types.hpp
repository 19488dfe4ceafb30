// SPDX-License-Identifier: Apache-2.0
// Types of the launcher's own options, made as those of settings are (accelerate/env/setting_types.hpp).
#pragma once

#include <charconv>
#include <chrono>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>

namespace accelerate::launch {

/// Seconds with a fraction: "0.5".
struct Duration {
  using Value = std::chrono::milliseconds;
  static constexpr double longest_s = 1e9;

  static std::optional<Value> parse(std::string_view text) {
    double seconds = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    if (!(seconds >= 0 && seconds <= longest_s)) return std::nullopt;
    return Value(static_cast<Value::rep>(std::llround(seconds * 1000)));
  }
  static std::string expected() { return "seconds, 0 to 1000000000"; }
};

}  // namespace accelerate::launch
