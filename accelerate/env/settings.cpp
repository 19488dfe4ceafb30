// SPDX-License-Identifier: Apache-2.0
#include "accelerate/env/settings.hpp"

#include "accelerate/base/log.hpp"
#include "accelerate/env/precedence.hpp"
#include "accelerate/env/settings_table.hpp"

namespace accelerate::env {
namespace {

template <typename Member, typename Value>
void put(Member& member, const Value& value) {
  member = value;
}
/// In code, a device is given as text.
void put(std::optional<DeviceName>& member, const std::string& text) { member = parse_device(text); }

/// cpu and an accelerator by name exclude one another.
void choose_one_device(Resolution& result, const ValueSource& cpu, const ValueSource& device) {
  Settings& settings = result.settings;
  if (!settings.cpu || !settings.device || settings.device->is_cpu()) return;
  const std::string gpu = settings.device->str();
  if (cpu.origin >= device.origin) {
    settings.device.reset();
    result.conflicts.push_back(
        fmt::format("cpu is true from {}; not used: {} {} in {}", cpu.where, device.name, gpu, device.where));
  } else {
    settings.cpu = false;
    result.conflicts.push_back(
        fmt::format("{} is {} from {}; not used: cpu true in {}", device.name, gpu, device.where, cpu.where));
  }
}

}  // namespace

Resolution weigh(const GivenSettings& from_code, const Variables& variables, const Config& config,
                 std::string_view given_by) {
  Resolution result;
  std::map<std::string_view, ValueSource> sources;
  for_each_setting([&](const auto& row) {
    const auto resolved = resolve_setting(row, row.of(from_code), variables, config, given_by);
    if (resolved.value) put(row.of(result.settings), *resolved.value);
    if (!resolved.conflict.empty()) result.conflicts.push_back(resolved.conflict);
    sources[row.name] = resolved.from;
  });
  choose_one_device(result, sources["cpu"], sources["device"]);
  return result;
}

Settings resolve_settings(const GivenSettings& from_code, const Variables& variables, const Config& config,
                          const RankContext& place) {
  const Resolution result = weigh(from_code, variables, config);
  for (const std::string& conflict : result.conflicts) {
    if (place.rank == 0) base::log_once(base::LogLevel::warning, place, "settings: {}", conflict);
  }
  return result.settings;
}

}  // namespace accelerate::env
