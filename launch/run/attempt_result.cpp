// SPDX-License-Identifier: Apache-2.0
#include "launch/run/attempt_result.hpp"

#include <exception>
#include <nlohmann/json.hpp>

namespace accelerate::launch {
namespace {

using Json = nlohmann::json;

/// Prefix of error texts; removed here and added again by LaunchError.
constexpr std::string_view kOurName = "accelerate_launch: ";

}  // namespace

AttemptResult attempt_result_of(const std::exception& error) {
  std::string_view text = error.what();
  if (text.starts_with(kOurName)) text.remove_prefix(kOurName.size());
  const auto* any = dynamic_cast<const Error*>(&error);
  const auto* own = dynamic_cast<const LaunchError*>(&error);
  return {.exit_code = own != nullptr ? own->exit_code() : 1,
          .refusal = std::string(text),
          .kind = any != nullptr ? any->kind() : ErrorKind::environment};
}

void throw_if_refused(const AttemptResult& outcome) {
  if (!outcome.refusal.empty()) throw LaunchError(outcome.kind, outcome.exit_code, outcome.refusal);
}

std::string to_text(const AttemptResult& outcome) {
  const Json json{outcome.exit_code, outcome.cause, outcome.restart_requested, outcome.refusal,
                  static_cast<int>(outcome.kind)};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<AttemptResult> parse_attempt_result(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  const bool whole = json.is_array() && json.size() == 5 && json[0].is_number_integer() && json[1].is_string() &&
                     json[2].is_boolean() && json[3].is_string() && json[4].is_number_integer();
  if (!whole) return std::nullopt;
  return AttemptResult{.exit_code = json[0].get<int>(),
                       .cause = json[1].get<std::string>(),
                       .restart_requested = json[2].get<bool>(),
                       .refusal = json[3].get<std::string>(),
                       .kind = static_cast<ErrorKind>(json[4].get<int>())};
}

}  // namespace accelerate::launch
