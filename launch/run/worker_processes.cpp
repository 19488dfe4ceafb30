// SPDX-License-Identifier: Apache-2.0
#include "launch/run/worker_processes.hpp"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <string>

namespace accelerate::launch {
namespace {

/// Reads the state letter in "4121 (train) T 4120 ...". The process name may contain any characters.
bool is_suspended(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  const auto name_end = line.rfind(") ");
  return name_end != std::string::npos && line.substr(name_end + 2, 1) == "T";
}

}  // namespace

size_t WorkerProcesses::running() const {
  return static_cast<size_t>(
      std::count_if(workers_.begin(), workers_.end(), [](const Worker& worker) { return worker.running(); }));
}

std::vector<int64_t> WorkerProcesses::suspended() const {
  std::vector<int64_t> ranks;
  for (const auto& worker : workers_) {
    if (worker.running() && is_suspended(worker.pid)) ranks.push_back(worker.rank);
  }
  return ranks;
}

void WorkerProcesses::reap(pid_t first, const std::function<void(const Worker&)>& on_ended) {
  for (auto& worker : workers_) {
    if (worker.pid == first) reap_one(worker, on_ended);
  }
  for (auto& worker : workers_) reap_one(worker, on_ended);
  reap_other_children();
}

/// Reaps children that are not workers. Stops at a worker, because reap_one() needs its status.
void WorkerProcesses::reap_other_children() const {
  siginfo_t info{};
  while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) {
    const auto is_it = [&](const Worker& worker) { return worker.running() && worker.pid == info.si_pid; };
    if (std::any_of(workers_.begin(), workers_.end(), is_it)) return;
    waitpid(info.si_pid, nullptr, 0);
    info = {};
  }
}

void WorkerProcesses::reap_one(Worker& worker, const std::function<void(const Worker&)>& on_ended) const {
  siginfo_t info{};
  if (!worker.running() || waitid(P_PID, static_cast<id_t>(worker.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid == 0) {
    return;
  }
  // Signals the remaining processes of the group first: before the reap, no other process can reuse this group id.
  kill(-worker.pid, SIGKILL);
  int status = 0;
  waitpid(worker.pid, &status, 0);
  worker.status = status;
  on_ended(worker);
}

void WorkerProcesses::send_signal(int number) const {
  for (const auto& worker : workers_) {
    if (worker.running()) kill(-worker.pid, number);
  }
}

void WorkerProcesses::stop(int number) {
  send_signal(number);
  if (!kill_at_) kill_at_ = Clock::now() + grace_;
}

int WorkerProcesses::poll_timeout_ms() const {
  if (!kill_at_) return -1;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*kill_at_ - Clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count() + 1, 1, 60'000));
}

void WorkerProcesses::kill_when_due() const {
  if (grace_is_over()) send_signal(SIGKILL);
}

}  // namespace accelerate::launch
