// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/machine.hpp"

#include <sched.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <sstream>

namespace accelerate::launch {
namespace {

bool is_number(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

std::string trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \t") - first + 1));
}

/// Index below present, or a UUID: nobody but the driver can check one of those.
bool names_device(const std::string& entry, int64_t present) {
  if (is_number(entry)) return entry.size() <= 6 && std::stoll(entry) < present;
  return entry.starts_with("GPU-") || entry.starts_with("MIG-");
}

std::vector<std::string> device_files() {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", ignored))
    names.push_back(entry.path().filename());
  return names;
}

}  // namespace

int64_t count_gpus(const std::vector<std::string>& devices, const std::optional<std::string>& visible) {
  const auto is_gpu = [](const std::string& name) { return name.starts_with("nvidia") && is_number(name.substr(6)); };
  const int64_t present = std::count_if(devices.begin(), devices.end(), is_gpu);
  if (!visible) return present;
  std::istringstream list(*visible);
  int64_t shown = 0;
  for (std::string entry; std::getline(list, entry, ',') && names_device(trim(entry), present);) ++shown;
  return present == 0 ? 0 : shown;
}

Machine this_machine(const env::Variables& variables) {
  Machine machine;
  const auto visible = variables.find("CUDA_VISIBLE_DEVICES");
  machine.gpus = count_gpus(device_files(),
                            visible == variables.end() ? std::nullopt : std::optional<std::string>(visible->second));
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) machine.usable_cpus = CPU_COUNT(&allowed);
  return machine;
}

}  // namespace accelerate::launch
