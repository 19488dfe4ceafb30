// SPDX-License-Identifier: Apache-2.0
// Precedence of the sources of a setting: code > environment variable > config file.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "accelerate/base/error.hpp"
#include "accelerate/env/parse.hpp"
#include "accelerate/env/settings.hpp"

namespace accelerate::env {

/// Source of a value, from the weakest to the strongest.
enum class Origin { unset, config, variable, code };

struct ValueSource {
  Origin origin = Origin::unset;
  std::string name{};   ///< of the setting, as written in that source
  std::string where{};  ///< "the code", "ACCELERATE_TIMEOUT", the config file's path
};

template <typename T>
struct Resolved {
  std::optional<T> value{};
  ValueSource from{};
  std::string conflict{};  ///< one sentence about an overridden, different value; otherwise empty
};

/// Parses the value of a variable or of the config file. `where` is its source for messages, such as
/// "ACCELERATE_TIMEOUT".
template <typename Row>
auto read_setting(const Row& row, const std::string& text, const std::string& where) {
  const auto value = row.type.parse(row.first_of_list ? text.substr(0, text.find(',')) : text);
  if (!value) {
    base::fail(ErrorKind::environment, {}, "settings", "{} is '{}', must be {}", where, text, row.type.expected());
  }
  return *value;
}

/// \throws Error (usage) for a value that the row does not allow.
template <typename Row, typename T>
void check_given(const Row& row, const T& value) {
  if (row.type.allows(value)) return;
  std::string shown = row.type.show(value);
  if constexpr (std::is_same_v<T, std::string>) shown = "'" + shown + "'";
  base::fail(ErrorKind::usage, {}, "settings", "{} is {}, must be {}", row.name, shown, row.type.expected());
}

/// Pure function. `given` overrides the variable, which overrides the config file.
///
/// \param row  Row of the table of settings.
template <typename Row, typename T>
Resolved<T> resolve_setting(const Row& row, const std::optional<T>& given, const Variables& variables,
                            const Config& config, std::string_view given_by) {
  Resolved<T> result;
  std::string losers;
  const auto offer = [&](Origin origin, const T& value, std::string_view name, std::string_view where) {
    if (result.value && *result.value != value) {
      losers += fmt::format("{}{} in {}", losers.empty() ? "" : ", ", row.type.show(*result.value), result.from.where);
    }
    result.value = value;
    result.from = {origin, std::string(name), std::string(where)};
  };
  if (const auto text = find(config.values, std::string(row.key))) {
    offer(Origin::config, read_setting(row, *text, fmt::format("{} in {}", row.key, config.path)), row.key,
          config.path);
  }
  const std::string variable(row.variable);
  if (const auto text = find(variables, variable)) {
    offer(Origin::variable, read_setting(row, *text, variable), row.key, variable);
  }
  if (given) {
    check_given(row, *given);
    offer(Origin::code, *given, row.name, given_by);
  }
  if (!losers.empty()) {
    result.conflict = fmt::format("{} is {} from {}; not used: {}", result.from.name, row.type.show(*result.value),
                                  result.from.where, losers);
  }
  return result;
}

}  // namespace accelerate::env
