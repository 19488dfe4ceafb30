// SPDX-License-Identifier: Apache-2.0
#include "accelerate/device/cpu_threads.hpp"

#include <ATen/Parallel.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

namespace accelerate::device {
namespace {

/// Returns the first line, or "" if there is none.
std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string all_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// Returns the cgroup folder of this process in a version 2 hierarchy.
std::string cgroup_folder() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("0::")) return "/sys/fs/cgroup" + line.substr(3) + "/";
  }
  return "/sys/fs/cgroup/";
}

std::string siblings_of(int64_t cpu) {
  return first_line("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
}

std::vector<int64_t> bound_cpus() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  std::vector<int64_t> cpus;
  if (sched_getaffinity(0, sizeof(mask), &mask) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<size_t>(cpu), &mask)) cpus.push_back(cpu);
  }
  return cpus;
}

std::optional<int64_t> to_number(std::string_view text) {
  int64_t value = 0;
  const auto [stop, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc{} || stop != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

/// \param folder  Path of a cgroup, "/a/b".
std::optional<int64_t> quota_of(const std::string& folder, bool version1, const FirstLine& first_line_of) {
  if (!version1) return parse_quota(first_line_of("/sys/fs/cgroup" + folder + "/cpu.max"));
  const std::string at = "/sys/fs/cgroup/cpu" + folder;
  return parse_quota(first_line_of(at + "/cpu.cfs_quota_us") + " " + first_line_of(at + "/cpu.cfs_period_us"));
}

}  // namespace

int64_t threads_per_rank(const Cores& cores, int64_t local_ranks, std::optional<int64_t> set) {
  if (set) return *set;
  return std::max<int64_t>(1, std::min(cores.mine, cores.machine / std::max<int64_t>(1, local_ranks)));
}

std::vector<int64_t> parse_cpu_list(std::string_view text) {
  std::vector<int64_t> cpus;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    const size_t dash = item.find('-');
    const auto first = to_number(item.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : to_number(item.substr(dash + 1));
    if (!first || !last || *last - *first > 65536) return {};
    for (int64_t cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
  }
  return cpus;
}

int64_t count_cores(const std::vector<int64_t>& cpus, const std::function<std::string(int64_t)>& siblings) {
  std::set<std::string> cores;
  for (const int64_t cpu : cpus) {
    const std::string text = siblings(cpu);
    cores.insert(text.empty() ? "cpu " + std::to_string(cpu) : text);
  }
  return static_cast<int64_t>(cores.size());
}

std::optional<int64_t> parse_quota(std::string_view cpu_max) {
  const size_t space = cpu_max.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  const auto quota = to_number(cpu_max.substr(0, space));
  const auto period = to_number(cpu_max.substr(space + 1));
  if (!quota || !period || *period == 0) return std::nullopt;
  return std::max<int64_t>(1, (*quota + *period - 1) / *period);
}

std::optional<int64_t> cpu_quota(const std::string& cgroups, const FirstLine& first_line_of) {
  std::optional<int64_t> least;
  std::istringstream lines(cgroups);
  for (std::string line; std::getline(lines, line);) {
    const size_t controllers = line.find(':') + 1;
    const size_t path = line.find(":/", controllers) + 1;
    if (controllers == 0 || path == 0) continue;
    const std::string names = "," + line.substr(controllers, path - 1 - controllers) + ",";
    const bool version1 = names.find(",cpu,") != std::string::npos;
    if (!version1 && names != ",,") continue;
    // Limits of parent groups apply as well; the root folder is "".
    for (size_t end = line.size(); end != std::string::npos && end >= path; end = line.rfind('/', end - 1)) {
      const auto quota = quota_of(line.substr(path, end - path), version1, first_line_of);
      if (quota) least = std::min(*quota, least.value_or(*quota));
    }
  }
  return least;
}

Cores physical_cores() {
  const std::vector<int64_t> bound = bound_cpus();
  const std::string cgroup = cgroup_folder();
  std::vector<int64_t> usable = parse_cpu_list(first_line(cgroup + "cpuset.cpus.effective"));
  if (usable.empty()) usable = parse_cpu_list(first_line("/sys/devices/system/cpu/online"));
  if (usable.empty()) usable = bound;
  Cores cores{.machine = count_cores(usable, siblings_of), .mine = count_cores(bound, siblings_of)};
  if (const auto quota = cpu_quota(all_of("/proc/self/cgroup"), first_line)) {
    cores.machine = std::min(cores.machine, *quota);
  }
  if (cores.machine == 0) cores.machine = std::max<int64_t>(1, std::thread::hardware_concurrency());
  if (cores.mine == 0) cores.mine = cores.machine;
  return cores;
}

int64_t threads() { return at::get_num_threads(); }

void set_threads(int64_t threads) { at::set_num_threads(static_cast<int>(threads)); }

}  // namespace accelerate::device
