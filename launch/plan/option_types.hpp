// SPDX-License-Identifier: Apache-2.0
// Types of the launcher's options, analogous to the types of settings (accelerate/env/value_types.hpp).
#pragma once

#include <fmt/format.h>

#include <algorithm>
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
  static constexpr double kMaxSeconds = 1e9;

  static std::optional<Value> parse(std::string_view text) {
    double seconds = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    if (!(seconds >= 0 && seconds <= kMaxSeconds)) return std::nullopt;
    return Value(static_cast<Value::rep>(std::llround(seconds * 1000)));
  }
  static bool allows(Value value) { return value.count() >= 0; }
  static std::string expected() { return "seconds, 0 to 1000000000"; }
  static std::string text(Value value) { return fmt::format("{}", std::chrono::duration<double>(value).count()); }
  static std::string show(Value value) { return text(value) + " s"; }
};

/// Any text, except an empty one and one with bytes that are not allowed in names.
struct Text {
  using Value = std::string;

  std::string_view what = "a text";

  static std::optional<std::string> parse(std::string_view text) {
    return allows(text) ? std::optional(std::string(text)) : std::nullopt;
  }
  static bool allows(std::string_view text) {
    return !text.empty() && std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c == 127; });
  }
  [[nodiscard]] std::string expected() const { return std::string(what); }
  static std::string text(const std::string& value) { return value; }
  static std::string show(const std::string& value) { return value; }
};

}  // namespace accelerate::launch
