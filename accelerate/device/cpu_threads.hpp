// SPDX-License-Identifier: Apache-2.0
// Determines the number of LibTorch threads of a rank.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::device {

/// Physical cores: two hardware threads of one core count once.
struct Cores {
  int64_t machine = 1;  ///< available to the job on this machine (cgroup, CPU quota)
  int64_t mine = 1;     ///< in this process's affinity mask; ranks of one machine may have different masks
};

/// Returns `set` if given, otherwise machine / local_ranks, at most `mine` and at least 1. Pure function.
int64_t threads_per_rank(const Cores& cores, int64_t local_ranks, std::optional<int64_t> set);

/// Reads the cores of this machine and process from /sys, the cgroup and the affinity mask. Unreadable sources impose
/// no limit.
Cores physical_cores();

/// Returns the number of LibTorch threads within one operator.
int64_t threads();
void set_threads(int64_t threads);

// Pure parts of physical_cores():

/// Returns the first line of a file, or "" if there is none.
using FirstLine = std::function<std::string(const std::string& path)>;

/// "0-3,8" -> {0, 1, 2, 3, 8}; other text -> {}.
std::vector<int64_t> parse_cpu_list(std::string_view text);

/// Returns the number of distinct texts of siblings(cpu); a CPU without text counts as a separate core.
int64_t count_cores(const std::vector<int64_t>& cpus, const std::function<std::string(int64_t cpu)>& siblings);

/// "150000 100000" -> 2 (rounded up), "max 100000" and other text -> no limit.
std::optional<int64_t> parse_quota(std::string_view cpu_max);

/// Returns the smallest CPU quota of this process's cgroup and its parents, in whole CPUs. Supports cgroups 1 and 2.
///
/// \param cgroups  Text of /proc/self/cgroup.
std::optional<int64_t> cpu_quota(const std::string& cgroups, const FirstLine& first_line_of);

}  // namespace accelerate::device
