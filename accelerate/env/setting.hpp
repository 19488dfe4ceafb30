// SPDX-License-Identifier: Apache-2.0
// One row of the table of settings, and the one rule of precedence.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "accelerate/base/error.hpp"
#include "accelerate/env/parse.hpp"
#include "accelerate/env/settings.hpp"

namespace accelerate::env {

template <typename T>
struct Setting {
  std::string_view name;
  std::string_view variable;
  std::string_view expected;  ///< "an integer, at least 1"
  std::optional<T> (*parse)(std::string_view text);
  bool (*allowed)(const T& value);
  std::optional<T> GivenSettings::*given;
  void (*put)(Settings& settings, const T& value);
};

enum class Origin { unset, config, variable, code };

template <typename T>
struct Resolved {
  std::optional<T> value{};
  Origin origin = Origin::unset;
  std::string conflict{};  ///< what lost to a different value, one sentence; empty: nothing did
};

inline std::string show(bool value) { return value ? "true" : "false"; }
inline std::string show(int64_t value) { return fmt::to_string(value); }
inline std::string show(const std::string& value) { return value; }
inline std::string show(std::chrono::seconds value) { return fmt::format("{} s", value.count()); }

/// The value in text; `where` names it in the error, like "ACCELERATE_TIMEOUT".
template <typename T>
T read_setting(const Setting<T>& setting, const std::string& text, const std::string& where) {
  const auto value = setting.parse(text);
  if (!value || !setting.allowed(*value)) {
    base::fail(ErrorKind::environment, {}, "settings", "{} is '{}', must be {}", where, text, setting.expected);
  }
  return *value;
}

/// Pure. given wins over the variable, the variable over the config file.
template <typename T>
Resolved<T> resolve(const Setting<T>& setting, const std::optional<T>& given, const Variables& variables,
                    const Config& config) {
  Resolved<T> result;
  const auto offer = [&](Origin origin, const T& value, const std::string& where) {
    if (result.value && *result.value != value) {
      result.conflict += fmt::format("{}{} in {}", result.conflict.empty() ? "" : ", ", show(*result.value), where);
    }
    result.value = value;
    result.origin = origin;
  };
  // From the weakest to the strongest; `below` is where the value came from that the next one beats.
  std::string below;
  if (const auto text = find(config.values, std::string(setting.name))) {
    below = config.path;
    offer(Origin::config, read_setting(setting, *text, fmt::format("{} in {}", setting.name, config.path)), below);
  }
  const std::string variable(setting.variable);
  if (const auto text = find(variables, variable)) {
    offer(Origin::variable, read_setting(setting, *text, variable), below);
    below = variable;
  }
  if (given) {
    if (!setting.allowed(*given)) {
      base::fail(ErrorKind::usage, {}, "settings", "{} is {}, must be {}", setting.name, show(*given),
                 setting.expected);
    }
    offer(Origin::code, *given, below);
  }
  if (!result.conflict.empty()) {
    result.conflict = fmt::format("{} is {} from {}; not used: {}", setting.name, show(*result.value),
                                  result.origin == Origin::code ? "the code" : variable, result.conflict);
  }
  return result;
}

}  // namespace accelerate::env
