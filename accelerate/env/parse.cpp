// SPDX-License-Identifier: Apache-2.0
#include "accelerate/env/parse.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

namespace accelerate::env {

std::optional<int64_t> parse_integer(std::string_view text) {
  int64_t value = 0;
  const char* begin = text.data();
  const char* end = begin + text.size();
  const auto [stop, problem] = std::from_chars(begin, end, value);
  if (problem != std::errc{} || stop != end) return std::nullopt;
  return value;
}

std::optional<bool> parse_bool(std::string_view text) {
  static constexpr std::array<std::string_view, 6> yes{"y", "yes", "t", "true", "on", "1"};
  static constexpr std::array<std::string_view, 6> no{"n", "no", "f", "false", "off", "0"};
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (std::find(yes.begin(), yes.end(), lower) != yes.end()) return true;
  if (std::find(no.begin(), no.end(), lower) != no.end()) return false;
  return std::nullopt;
}

std::optional<DeviceName> parse_device(std::string_view text) {
  const size_t colon = text.find(':');
  DeviceName device{.type = std::string(text.substr(0, colon))};
  const bool is_name =
      !device.type.empty() && device.type.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") == std::string::npos;
  if (!is_name) return std::nullopt;
  if (colon == std::string_view::npos) return device;
  const auto index = parse_integer(text.substr(colon + 1));
  if (!index || *index < 0 || (device.is_cpu() && *index != 0)) return std::nullopt;
  if (!device.is_cpu()) device.index = index;
  return device;
}

std::optional<std::string> find(const Variables& variables, const std::string& name) {
  const auto found = variables.find(name);
  if (found == variables.end() || found->second.empty()) return std::nullopt;
  return found->second;
}

}  // namespace accelerate::env
