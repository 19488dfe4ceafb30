// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/machine.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>
#include <utility>

#include "accelerate/env/parse.hpp"

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

/// True for an index below `present` or a UUID; only the driver could verify a UUID.
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

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// Returns the first processor that shares a core with this one, or the processor itself if the system has no data.
int core_of(int processor) {
  const auto siblings = parse_processors(
      first_line(fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", processor)));
  return siblings.empty() ? processor : siblings.front();
}

std::vector<int> usable_of(const cpu_set_t& allowed, std::vector<int> processors) {
  std::erase_if(processors, [&](int each) { return each < 0 || each >= CPU_SETSIZE || !CPU_ISSET(each, &allowed); });
  std::vector<std::pair<int, int>> by_core;
  for (const int each : processors) by_core.emplace_back(core_of(each), each);
  std::stable_sort(by_core.begin(), by_core.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::transform(by_core.begin(), by_core.end(), processors.begin(), [](const auto& each) { return each.second; });
  return processors;
}

std::vector<std::vector<int>> processors_by_node(const cpu_set_t& allowed) {
  std::vector<std::vector<int>> nodes;
  for (const int node : parse_processors(first_line("/sys/devices/system/node/online"))) {
    const auto list = first_line(fmt::format("/sys/devices/system/node/node{}/cpulist", node));
    auto usable = usable_of(allowed, parse_processors(list));
    if (!usable.empty()) nodes.push_back(std::move(usable));
  }
  if (!nodes.empty()) return nodes;
  std::vector<int> all(CPU_SETSIZE);
  std::iota(all.begin(), all.end(), 0);
  nodes.push_back(usable_of(allowed, std::move(all)));
  return nodes;
}

}  // namespace

std::vector<int> parse_processors(std::string_view list) {
  std::vector<int> processors;
  std::istringstream items{std::string(list)};
  for (std::string item; std::getline(items, item, ',');) {
    const auto dash = item.find('-');
    const auto first = env::parse_integer(item.substr(0, dash));
    const auto last = dash == std::string::npos ? first : env::parse_integer(item.substr(dash + 1));
    if (!first || !last || *first < 0 || *last >= CPU_SETSIZE) return {};
    for (int64_t each = *first; each <= *last; ++each) processors.push_back(static_cast<int>(each));
  }
  return processors;
}

int64_t count_gpus(const std::vector<std::string>& devices, const std::optional<std::string>& visible) {
  const auto is_gpu = [](const std::string& name) { return name.starts_with("nvidia") && is_number(name.substr(6)); };
  const int64_t present = std::count_if(devices.begin(), devices.end(), is_gpu);
  if (!visible) return present;
  std::istringstream list(*visible);
  int64_t shown = 0;
  for (std::string entry; std::getline(list, entry, ',') && names_device(trim(entry), present);) ++shown;
  return present == 0 ? 0 : shown;
}

Machine this_machine(const env::Variables& variables, const std::optional<std::string>& gpus) {
  Machine machine;
  const auto visible = variables.find("CUDA_VISIBLE_DEVICES");
  const auto shown = visible == variables.end() ? std::nullopt : std::optional<std::string>(visible->second);
  machine.gpus = count_gpus(device_files(), gpus ? gpus : shown);
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return machine;
  machine.usable_cpus = CPU_COUNT(&allowed);
  machine.processors = processors_by_node(allowed);
  return machine;
}

}  // namespace accelerate::launch
