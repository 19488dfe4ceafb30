// SPDX-License-Identifier: Apache-2.0
// How many threads LibTorch gets in one rank.
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
  int64_t machine = 1;  ///< that the job may use on this machine (cgroup, its CPU quota)
  int64_t mine = 1;  ///< that this process is bound to (affinity); ranks of one machine may be bound to different ones
};

/// set if given, else machine / local_ranks, not more than this process is bound to, at least 1. Pure.
int64_t threads_per_rank(const Cores& cores, int64_t local_ranks, std::optional<int64_t> set);

/// Of this machine and process, from /sys, the cgroup and the affinity mask; what cannot be read does not limit.
Cores physical_cores();

/// LibTorch's threads within one operator.
int64_t threads();
void set_threads(int64_t threads);

// Pure parts of physical_cores():

/// Returns the first line of a file, or "" if there is none.
using FirstLine = std::function<std::string(const std::string& path)>;

/// "0-3,8" -> {0, 1, 2, 3, 8}; other text -> {}.
std::vector<int64_t> parse_cpu_list(std::string_view text);

/// How many different texts siblings(cpu) gives; a CPU without text is a core of its own.
int64_t count_cores(const std::vector<int64_t>& cpus, const std::function<std::string(int64_t cpu)>& siblings);

/// "150000 100000" -> 2 (rounded up), "max 100000" and other text -> no limit.
std::optional<int64_t> parse_quota(std::string_view cpu_max);

/// Returns the smallest CPU quota of this process's cgroup and its parents, in whole CPUs. Supports cgroups 1 and 2.
///
/// \param cgroups  Text of /proc/self/cgroup.
std::optional<int64_t> cpu_quota(const std::string& cgroups, const FirstLine& first_line_of);

}  // namespace accelerate::device
