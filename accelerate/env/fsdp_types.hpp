// SPDX-License-Identifier: Apache-2.0
// Types of values in the table of FSDP settings, of the form that value_types.hpp describes.
#pragma once

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/env/value_types.hpp"

namespace accelerate::env {

inline std::string upper_case(std::string_view text) {
  std::string upper(text);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return upper;
}

/// A flag that is "true" or "false" in variables, as Hugging Face Accelerate writes them.
struct TrueOrFalse : Flag {
  static std::string text(bool value) { return show(value); }
};

/// A flag with one supported value.
struct OnlyFalse : TrueOrFalse {
  std::string_view reason;

  explicit OnlyFalse(std::string_view text) : reason(text) {}
  static std::optional<bool> parse(std::string_view text) {
    return parse_bool(text) == false ? std::optional(false) : std::nullopt;
  }
  static bool allows(bool value) { return !value; }
  [[nodiscard]] std::string expected() const { return fmt::format("false; {}", reason); }
};

/// true or false, or FSDP1's name of a strategy, which Accelerate's questionnaire writes into config files.
struct ReshardAfterForward : TrueOrFalse {
  static std::optional<bool> parse(std::string_view text) {
    const std::string name = upper_case(text);
    if (name == "FULL_SHARD") return true;
    if (name == "SHARD_GRAD_OP") return false;
    return parse_bool(text);
  }
  static std::string expected() {
    return "true, false, FULL_SHARD (true) or SHARD_GRAD_OP (false); other strategies are values of "
           "fsdp_sharding_strategy";
  }
};

/// One of several names in upper or lower case, or PyTorch's number for it.
struct NumberedName {
  using Value = std::string;

  struct Row {
    std::string_view name;         ///< in upper case
    std::string_view number = "";  ///< empty if there is none
  };
  std::span<const Row> rows;
  std::string_view note = "";  ///< end of the message about another value

  [[nodiscard]] std::optional<std::string> parse(std::string_view text) const {
    const std::string name = upper_case(text);
    for (const Row& row : rows) {
      if (row.name == name || (!row.number.empty() && row.number == name)) return std::string(row.name);
    }
    return std::nullopt;
  }
  [[nodiscard]] bool allows(const std::string& value) const { return parse(value) == value; }
  [[nodiscard]] std::string expected() const {
    std::string list;
    for (const Row& row : rows) {
      list += fmt::format("{}{}", list.empty() ? "" : &row == &rows.back() ? " or " : ", ", row.name);
    }
    return list + std::string(note);
  }
  static std::string text(const std::string& value) { return value; }
  static std::string show(const std::string& value) { return value; }
};

/// Names separated by commas, of which none is empty.
struct NameList {
  using Value = std::vector<std::string>;

  static std::optional<Value> parse(std::string_view text) {
    Value names;
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find(',', begin), text.size());
      std::string_view name = text.substr(begin, end - begin);
      name.remove_prefix(std::min(name.find_first_not_of(' '), name.size()));
      name = name.substr(0, name.find_last_not_of(' ') + 1);
      names.emplace_back(name);
      begin = end + 1;
    }
    return allows(names) ? std::optional(names) : std::nullopt;
  }
  static bool allows(const Value& names) {
    return !names.empty() && std::ranges::none_of(names, [](const std::string& name) { return name.empty(); });
  }
  static std::string expected() { return "names separated by commas"; }
  static std::string text(const Value& names) { return fmt::format("{}", fmt::join(names, ",")); }
  static std::string show(const Value& names) { return text(names); }
};

/// An option of Accelerate that must not be given.
struct NotSupported {
  using Value = std::string;

  std::string_view reason;

  static std::optional<std::string> parse(std::string_view /*text*/) { return std::nullopt; }
  static bool allows(const std::string& /*value*/) { return false; }
  [[nodiscard]] std::string expected() const { return fmt::format("absent; {}", reason); }
  static std::string text(const std::string& value) { return value; }
  static std::string show(const std::string& value) { return value; }
};

}  // namespace accelerate::env
