// SPDX-License-Identifier: Apache-2.0
#include "launch/run/hang_monitor.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>

#include "launch/run/hang_status.hpp"
#include "launch/run/process_activity.hpp"
#include "launch/run/stack_traces.hpp"

namespace accelerate::launch {

void HangMonitor::add(WorkerPlan& planned, const std::string& folder) {
  planned.environment.erase("ACCELERATE_HEARTBEAT_FILE");
  if (limit_.count() == 0) return;
  planned.environment["ACCELERATE_HEARTBEAT_FILE"] = heartbeats_.add(folder, planned.rank);
  look_at_ = Clock::now();
}

std::vector<StalledRank> HangMonitor::poll(const std::vector<Worker>& workers) {
  using std::chrono::milliseconds;
  const auto now = Clock::now();
  if (!look_at_ || now < *look_at_) return {};
  look_at_ = now + std::clamp(limit_ / 8, milliseconds(10), milliseconds(5000));
  const auto still_for = heartbeats_.stalled_time(now);
  if (detector_ >= 0) return send_hang_status(still_for >= limit_ / 2, workers);
  // No hang is reported before the first rank has joined; start-up time is not limited.
  if (still_for < limit_ || !heartbeats_.any_rank_active()) return {};
  look_at_.reset();
  return running(workers);
}

std::vector<StalledRank> HangMonitor::send_hang_status(bool stalled_time, const std::vector<Worker>& workers) {
  if (stalled_time != reported_stalled_) {
    const auto message =
        message_of(HangStatus{.is_still = stalled_time, .ranks = stalled_time ? running(workers) : Ranks{}});
    send(detector_, message.data(), message.size(), MSG_NOSIGNAL);
    reported_stalled_ = stalled_time;
  }
  return {};
}

std::optional<std::string> HangMonitor::verdict() {
  std::array<char, 4096> bytes;
  const ssize_t count = detector_ < 0 ? -1 : recv(detector_, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (count <= 0) return std::nullopt;
  received_.append(bytes.data(), static_cast<size_t>(count));
  const auto end = received_.find('\n');
  if (end == std::string::npos) return std::nullopt;
  look_at_.reset();
  return received_.substr(0, end);
}

HangMonitor::Ranks HangMonitor::running(const std::vector<Worker>& workers) const {
  Ranks ranks;
  for (const auto& worker : workers) {
    if (!worker.running()) continue;
    ranks.push_back({worker.rank, worker.pid, heartbeats_.of(worker.rank), std::string(process_activity(worker.pid))});
  }
  return ranks;
}

std::string stacks_of_all(const std::vector<StalledRank>& ranks, std::chrono::milliseconds time) {
  std::string text;
  const auto end = HangMonitor::Clock::now() + time;
  // A debugger needs seconds to load symbols, so the missing ranks are examined first.
  auto in_order = ranks;
  const auto missing = missing_ranks(ranks);
  std::stable_partition(in_order.begin(), in_order.end(), [&](const StalledRank& each) {
    return std::find(missing.begin(), missing.end(), each.rank) != missing.end();
  });
  for (const auto& each : in_order) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - HangMonitor::Clock::now());
    if (left.count() <= 0) break;
    text += fmt::format("accelerate_launch: stacks of worker {}:\n{}", each.rank, stacks_of(each.pid, left));
  }
  return text;
}

}  // namespace accelerate::launch
