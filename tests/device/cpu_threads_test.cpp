// SPDX-License-Identifier: Apache-2.0
#include "accelerate/device/cpu_threads.hpp"

#include "tests/testing.hpp"

namespace device = accelerate::device;
using Cpus = std::vector<int64_t>;

TEST_CASE("physical cores are divided by the number of local ranks unless a number is set") {
  CHECK(device::threads_per_rank({.machine = 16, .mine = 16}, 1, {}) == 16);
  CHECK(device::threads_per_rank({.machine = 16, .mine = 16}, 4, {}) == 4);
  CHECK(device::threads_per_rank({.machine = 16, .mine = 16}, 3, {}) == 5);
  CHECK(device::threads_per_rank({.machine = 2, .mine = 2}, 8, {}) == 1);
  CHECK(device::threads_per_rank({.machine = 2, .mine = 1}, 8, 3) == 3);
}

TEST_CASE("a rank that is bound to cores uses all of them") {
  CHECK(device::threads_per_rank({.machine = 16, .mine = 8}, 2, {}) == 8);
  CHECK(device::threads_per_rank({.machine = 16, .mine = 1}, 2, {}) == 1);
}

TEST_CASE("a list of CPUs consists of numbers and ranges") {
  CHECK(device::parse_cpu_list("0-3,8") == Cpus{0, 1, 2, 3, 8});
  CHECK(device::parse_cpu_list("5") == Cpus{5});
  CHECK(device::parse_cpu_list("") == Cpus{});
  CHECK(device::parse_cpu_list("0-x") == Cpus{});
  CHECK(device::parse_cpu_list("a,1") == Cpus{});
}

TEST_CASE("hardware threads of one core count once, CPUs of unknown topology count each") {
  const auto pairs = [](int64_t cpu) { return std::to_string(cpu % 4) + "," + std::to_string(cpu % 4 + 4); };
  CHECK(device::count_cores({0, 1, 2, 3, 4, 5, 6, 7}, pairs) == 4);
  CHECK(device::count_cores({0, 4}, pairs) == 1);
  CHECK(device::count_cores({0, 1, 2}, [](int64_t) { return std::string(); }) == 3);
}

TEST_CASE("a CPU quota is rounded up, and no quota is no limit") {
  CHECK(device::parse_quota("200000 100000") == 2);
  CHECK(device::parse_quota("150000 100000") == 2);
  CHECK(device::parse_quota("1000 100000") == 1);
  CHECK(device::parse_quota("max 100000") == std::nullopt);
  CHECK(device::parse_quota("") == std::nullopt);
  CHECK(device::parse_quota("1 0") == std::nullopt);
}

TEST_CASE("a quota of the cgroup or of a parent limits the threads, in both cgroup versions") {
  const std::map<std::string, std::string> files{
      {"/sys/fs/cgroup/cpu.max", "900000 100000"},          {"/sys/fs/cgroup/a/cpu.max", "300000 100000"},
      {"/sys/fs/cgroup/a/b/cpu.max", "max 100000"},         {"/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "250000"},
      {"/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000"}, {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1"},
      {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000"}};
  const auto line = [&](const std::string& path) { return files.contains(path) ? files.at(path) : std::string(); };
  const auto quota = [&](const std::string& cgroups) { return device::cpu_quota(cgroups, line); };
  CHECK(quota("0::/a/b\n") == 3);
  CHECK(quota("0::/a\n") == 3);
  CHECK(quota("0::/c/d\n") == 9);
  CHECK(quota("4:memory:/m\n2:cpu,cpuacct:/x\n") == 3);  // 2.5 rounded up
  CHECK(quota("1:cpu:/\n") == std::nullopt);
  CHECK(quota("3:cpuset:/x\n") == std::nullopt);
  CHECK(quota("") == std::nullopt);
  CHECK(quota("nonsense\n") == std::nullopt);
}

TEST_CASE("a single rank respects the quota too") {
  CHECK(device::threads_per_rank({.machine = 3, .mine = 16}, 1, {}) == 3);
}

TEST_CASE("this machine has cores, and at most as many as hardware threads") {
  const device::Cores cores = device::physical_cores();
  CHECK(cores.mine >= 1);
  CHECK(cores.machine >= 1);
  CHECK(cores.mine <= static_cast<int64_t>(std::thread::hardware_concurrency()));
}

TEST_CASE("the number of threads is set in LibTorch") {
  const int before = at::get_num_threads();
  device::set_threads(2);
  CHECK(at::get_num_threads() == 2);
  CHECK(device::threads() == 2);
  device::set_threads(before);
}
