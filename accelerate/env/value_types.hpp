// SPDX-License-Identifier: Apache-2.0
// Types of setting values: valid values, text form and messages. Each type has
//   Value            type of the value in code
//   parse(text)      nothing for an invalid text
//   allows(value)    whether code may set this value
//   expected()       "an integer, at least 1"
//   text(value)      text in an environment variable; parse(text(value)) is value
//   show(value)      text in messages
#pragma once

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "accelerate/env/parse.hpp"

namespace accelerate::env {

/// True or false. On the command line it takes no value.
struct Flag {
  using Value = bool;

  static std::optional<bool> parse(std::string_view text) { return parse_bool(text); }
  static bool allows(bool /*value*/) { return true; }
  static std::string expected() { return "y, yes, t, true, on, 1, n, no, f, false, off or 0"; }
  static std::string text(bool value) { return value ? "1" : "0"; }
  static std::string show(bool value) { return value ? "true" : "false"; }
};

struct Integer {
  using Value = int64_t;
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  int64_t lowest = 0;
  int64_t highest = kNoLimit;

  [[nodiscard]] std::optional<int64_t> parse(std::string_view text) const {
    const auto value = parse_integer(text);
    return value && allows(*value) ? value : std::nullopt;
  }
  [[nodiscard]] bool allows(int64_t value) const { return value >= lowest && value <= highest; }
  [[nodiscard]] std::string expected() const {
    return highest == kNoLimit ? fmt::format("an integer, at least {}", lowest)
                               : fmt::format("an integer, {} to {}", lowest, highest);
  }
  static std::string text(int64_t value) { return fmt::to_string(value); }
  static std::string show(int64_t value) { return text(value); }
};

struct Seconds {
  using Value = std::chrono::seconds;

  Integer count;

  [[nodiscard]] std::optional<Value> parse(std::string_view text) const {
    const auto value = count.parse(text);
    return value ? std::optional(Value(*value)) : std::nullopt;
  }
  [[nodiscard]] bool allows(Value value) const { return count.allows(value.count()); }
  [[nodiscard]] std::string expected() const {
    return fmt::format("whole seconds, {} to {}", count.lowest, count.highest);
  }
  static std::string text(Value value) { return fmt::to_string(value.count()); }
  static std::string show(Value value) { return text(value) + " s"; }
};

/// One of an enum's values by name; in code, the enum value.
template <typename Enum, size_t count>
struct Choice {
  using Value = Enum;

  std::array<std::pair<Enum, std::string_view>, count> names;

  [[nodiscard]] std::optional<Enum> parse(std::string_view text) const {
    for (const auto& [value, name] : names) {
      if (name == text) return value;
    }
    return std::nullopt;
  }
  [[nodiscard]] bool allows(Enum value) const {
    return static_cast<int64_t>(value) >= 0 && static_cast<size_t>(value) < count;
  }
  [[nodiscard]] std::string expected() const {
    std::string list;
    for (size_t i = 0; i < count; ++i) {
      list += fmt::format("{}{}", i == 0 ? "" : i + 1 == count ? " or " : ", ", names.at(i).second);
    }
    return list;
  }
  [[nodiscard]] std::string text(Enum value) const {
    return allows(value) ? std::string(names.at(static_cast<size_t>(value)).second)
                         : fmt::to_string(static_cast<int64_t>(value));
  }
  [[nodiscard]] std::string show(Enum value) const { return text(value); }
};

/// A text that a predicate accepts; in code, text as well.
struct Word {
  using Value = std::string;

  bool (*known)(std::string_view text);
  std::string choice;

  [[nodiscard]] std::optional<std::string> parse(std::string_view text) const {
    return known(text) ? std::optional(std::string(text)) : std::nullopt;
  }
  [[nodiscard]] bool allows(const std::string& value) const { return known(value); }
  [[nodiscard]] std::string expected() const { return choice; }
  static std::string text(const std::string& value) { return value; }
  static std::string show(const std::string& value) { return value; }
};

}  // namespace accelerate::env
