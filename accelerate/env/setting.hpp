// SPDX-License-Identifier: Apache-2.0
// One row of the table of settings, and the one rule of precedence.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

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
  std::string_view in_code = name;  ///< the option's name, where it is another
};

/// Where a value came from, from the weakest to the strongest.
enum class Origin { unset, config, variable, code };

struct Came {
  Origin origin = Origin::unset;
  std::string name{};   ///< of the setting, as its origin calls it
  std::string where{};  ///< "the code", "ACCELERATE_TIMEOUT", the config file's path
};

template <typename T>
struct Resolved {
  std::optional<T> value{};
  Came from{};
  std::string conflict{};  ///< what lost to a different value, one sentence; empty: nothing did
};

inline std::string show(bool value) { return value ? "true" : "false"; }
inline std::string show(int64_t value) { return fmt::to_string(value); }
inline std::string show(const std::string& value) { return value; }
inline std::string show(const DeviceName& device) {
  return device.index ? fmt::format("{}:{}", device.type, *device.index) : device.type;
}
inline std::string show(std::chrono::seconds value) { return fmt::format("{} s", value.count()); }
template <typename T>
std::string quoted(const T& value) {
  if constexpr (std::is_same_v<T, std::string>) return "'" + value + "'";
  return show(value);
}

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
                    const Config& config, std::string_view given_by) {
  Resolved<T> result;
  std::string losers;
  const auto offer = [&](Origin origin, const T& value, std::string_view name, std::string_view where) {
    if (result.value && *result.value != value) {
      losers += fmt::format("{}{} in {}", losers.empty() ? "" : ", ", show(*result.value), result.from.where);
    }
    result.value = value;
    result.from = {origin, std::string(name), std::string(where)};
  };
  if (const auto text = find(config.values, std::string(setting.name))) {
    const T value = read_setting(setting, *text, fmt::format("{} in {}", setting.name, config.path));
    offer(Origin::config, value, setting.name, config.path);
  }
  const std::string variable(setting.variable);
  if (const auto text = find(variables, variable)) {
    offer(Origin::variable, read_setting(setting, *text, variable), setting.name, variable);
  }
  if (given) {
    if (!setting.allowed(*given)) {
      base::fail(ErrorKind::usage, {}, "settings", "{} is {}, must be {}", setting.in_code, quoted(*given),
                 setting.expected);
    }
    offer(Origin::code, *given, setting.in_code, given_by);
  }
  if (!losers.empty()) {
    result.conflict =
        fmt::format("{} is {} from {}; not used: {}", result.from.name, show(*result.value), result.from.where, losers);
  }
  return result;
}

}  // namespace accelerate::env
