// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tracking/text.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

namespace accelerate::tracking {
namespace {

std::string exact_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  return fmt::format("{}", number);  // shortest text that parses to the same number
}

}  // namespace

std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string valid_utf8(std::string_view text) { return nlohmann::json::parse(json_string(text)).get<std::string>(); }

std::string json_text(const Value& value) {
  if (const auto* text = std::get_if<std::string>(&value.kind())) return json_string(*text);
  if (const auto* number = std::get_if<double>(&value.kind()); number != nullptr && !std::isfinite(*number)) {
    return std::isnan(*number) ? R"("NaN")" : *number > 0 ? R"("Infinity")" : R"("-Infinity")";
  }
  return plain_text(value);
}

std::string plain_text(const Value& value) {
  if (const auto* yes = std::get_if<bool>(&value.kind())) return *yes ? "true" : "false";
  if (const auto* whole = std::get_if<int64_t>(&value.kind())) return std::to_string(*whole);
  if (const auto* number = std::get_if<double>(&value.kind())) return exact_text(*number);
  if (const auto* text = std::get_if<std::string>(&value.kind())) return *text;
  return "";
}

double wall_time() {
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since_1970).count();
}

}  // namespace accelerate::tracking
