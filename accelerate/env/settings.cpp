// SPDX-License-Identifier: Apache-2.0
#include "accelerate/env/settings.hpp"

#include <tuple>

#include "accelerate/base/log.hpp"
#include "accelerate/env/backends.hpp"
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
bool known_backend(const std::string& value) { return is_backend(value); }
bool is_device(const std::string& value) { return parse_device(value).has_value(); }
bool positive(const int64_t& value) { return value >= 1; }
// Beyond these a deadline or a thread pool overflows what LibTorch and the clock can hold.
bool is_timeout(const seconds& value) { return value >= seconds(1) && value <= seconds(1'000'000'000); }
bool is_thread_count(const int64_t& value) { return value >= 1 && value <= 65536; }

constexpr std::string_view bool_expected = "y, yes, t, true, on, 1, n, no, f, false, off or 0";

constexpr std::string_view device_expected = "cpu, cuda, cuda:N or another device of LibTorch's";

/// A new setting is a row here and a member in each of the two structs.
const auto& table() {
  static const std::string choice = backend_choice();
  static const std::tuple rows{
      Setting<int64_t>{"gradient_accumulation_steps", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
                       "an integer, at least 1", parse_integer, positive, &GivenSettings::gradient_accumulation_steps,
                       [](Settings& to, const int64_t& value) { to.gradient_accumulation_steps = value; }},
      Setting<bool>{"cpu", "ACCELERATE_USE_CPU", bool_expected, parse_bool, any_bool, &GivenSettings::cpu,
                    [](Settings& to, const bool& value) { to.cpu = value; }},
      Setting<std::string>{"backend", "ACCELERATE_BACKEND", choice, parse_text, known_backend, &GivenSettings::backend,
                           [](Settings& to, const std::string& value) { to.backend = value; }},
      Setting<seconds>{"timeout", "ACCELERATE_TIMEOUT", "whole seconds, 1 to 1000000000", parse_seconds, is_timeout,
                       &GivenSettings::timeout, [](Settings& to, const seconds& value) { to.timeout = value; }},
      Setting<bool>{"debug", "ACCELERATE_DEBUG_MODE", bool_expected, parse_bool, any_bool, &GivenSettings::debug,
                    [](Settings& to, const bool& value) { to.debug = value; }},
      Setting<std::string>{"torch_device", "ACCELERATE_TORCH_DEVICE", device_expected, parse_text, is_device,
                           &GivenSettings::torch_device,
                           [](Settings& to, const std::string& value) { to.torch_device = parse_device(value); },
                           "device"},
      Setting<int64_t>{"threads_per_rank", "OMP_NUM_THREADS", "an integer, 1 to 65536", parse_threads, is_thread_count,
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

/// cpu and an accelerator by name exclude one another.
void choose_one_device(Resolution& result, const Came& cpu, const Came& device) {
  Settings& settings = result.settings;
  if (!settings.cpu || !settings.torch_device || settings.torch_device->is_cpu()) return;
  const std::string gpu = show(*settings.torch_device);
  if (cpu.origin >= device.origin) {
    settings.torch_device.reset();
    result.conflicts.push_back(
        fmt::format("cpu is true from {}; not used: {} {} in {}", cpu.where, device.name, gpu, device.where));
  } else {
    settings.cpu = false;
    result.conflicts.push_back(
        fmt::format("{} is {} from {}; not used: cpu true in {}", device.name, gpu, device.where, cpu.where));
  }
}

}  // namespace

std::vector<SettingName> setting_names() {
  std::vector<SettingName> names;
  for_each_row([&](const auto& row) { names.push_back({row.name, row.variable}); });
  return names;
}

Resolution weigh(const GivenSettings& from_code, const Variables& variables, const Config& config,
                 std::string_view given_by) {
  Resolution result;
  std::map<std::string_view, Came> came;
  for_each_row([&](const auto& row) {
    const auto resolved = resolve(row, from_code.*row.given, variables, config, given_by);
    if (resolved.value) row.put(result.settings, *resolved.value);
    if (!resolved.conflict.empty()) result.conflicts.push_back(resolved.conflict);
    came[row.name] = resolved.from;
  });
  choose_one_device(result, came["cpu"], came["torch_device"]);
  return result;
}

Settings resolve_settings(const GivenSettings& from_code, const Variables& variables, const Config& config,
                          const Place& place) {
  const Resolution result = weigh(from_code, variables, config);
  for (const std::string& conflict : result.conflicts) {
    if (place.rank == 0) base::log_once(base::LogLevel::warning, place, "settings: {}", conflict);
  }
  return result.settings;
}

}  // namespace accelerate::env
