// SPDX-License-Identifier: Apache-2.0
#include "accelerate/env/settings.hpp"

#include <tuple>

#include "accelerate/base/log.hpp"
#include "accelerate/env/setting.hpp"

namespace accelerate::env {
namespace {

using std::chrono::seconds;

std::optional<std::string> parse_text(std::string_view text) { return std::string(text); }

std::optional<seconds> parse_seconds(std::string_view text) {
  const auto count = parse_integer(text);
  if (!count) return std::nullopt;
  return seconds(*count);
}

/// OpenMP allows a list, one number per level of nesting: the first is ours.
std::optional<int64_t> parse_threads(std::string_view text) { return parse_integer(text.substr(0, text.find(','))); }

bool any_bool(const bool&) { return true; }
bool some_text(const std::string& value) { return !value.empty(); }
bool positive(const int64_t& value) { return value >= 1; }
bool at_least_a_second(const seconds& value) { return value >= seconds(1); }

constexpr std::string_view bool_expected = "y, yes, t, true, on, 1, n, no, f, false, off or 0";

/// A new setting is a row here and a member in each of the two structs.
const auto& table() {
  static const std::tuple rows{
      Setting<int64_t>{"gradient_accumulation_steps", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
                       "an integer, at least 1", parse_integer, positive, &GivenSettings::gradient_accumulation_steps,
                       [](Settings& to, const int64_t& value) { to.gradient_accumulation_steps = value; }},
      Setting<bool>{"cpu", "ACCELERATE_USE_CPU", bool_expected, parse_bool, any_bool, &GivenSettings::cpu,
                    [](Settings& to, const bool& value) { to.cpu = value; }},
      Setting<std::string>{"backend", "ACCELERATE_BACKEND", "the name of a backend", parse_text, some_text,
                           &GivenSettings::backend, [](Settings& to, const std::string& value) { to.backend = value; }},
      Setting<seconds>{"timeout", "ACCELERATE_TIMEOUT", "whole seconds, at least 1", parse_seconds, at_least_a_second,
                       &GivenSettings::timeout, [](Settings& to, const seconds& value) { to.timeout = value; }},
      Setting<bool>{"debug", "ACCELERATE_DEBUG_MODE", bool_expected, parse_bool, any_bool, &GivenSettings::debug,
                    [](Settings& to, const bool& value) { to.debug = value; }},
      Setting<std::string>{"torch_device", "ACCELERATE_TORCH_DEVICE", "a device, like cuda:1 or cpu", parse_text,
                           some_text, &GivenSettings::torch_device,
                           [](Settings& to, const std::string& value) { to.torch_device = value; }},
      Setting<int64_t>{"threads_per_rank", "OMP_NUM_THREADS", "an integer, at least 1", parse_threads, positive,
                       &GivenSettings::threads_per_rank,
                       [](Settings& to, const int64_t& value) { to.threads_per_rank = value; }},
      Setting<bool>{"allow_shared_gpus", "ACCELERATE_ALLOW_SHARED_GPUS", bool_expected, parse_bool, any_bool,
                    &GivenSettings::allow_shared_gpus,
                    [](Settings& to, const bool& value) { to.allow_shared_gpus = value; }},
  };
  return rows;
}

template <typename Function>
void for_each_row(Function&& function) {
  std::apply([&](const auto&... row) { (function(row), ...); }, table());
}

}  // namespace

std::vector<SettingName> setting_names() {
  std::vector<SettingName> names;
  for_each_row([&](const auto& row) { names.push_back({row.name, row.variable}); });
  return names;
}

Settings resolve_settings(const GivenSettings& from_code, const Variables& variables, const Config& config,
                          const Place& place) {
  Settings settings;
  for_each_row([&](const auto& row) {
    const auto resolved = resolve(row, from_code.*row.given, variables, config);
    if (resolved.value) row.put(settings, *resolved.value);
    if (!resolved.conflict.empty() && place.rank == 0) {
      base::log(base::LogLevel::warning, place, "settings: {}", resolved.conflict);
    }
  });
  return settings;
}

}  // namespace accelerate::env
