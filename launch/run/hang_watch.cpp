// SPDX-License-Identifier: Apache-2.0
#include "launch/run/hang_watch.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>

#include "launch/run/stacks.hpp"
#include "launch/run/stillness.hpp"
#include "launch/run/straggler.hpp"

namespace accelerate::launch {

void HangWatch::add(WorkerPlan& planned, const std::string& folder) {
  planned.environment.erase("ACCELERATE_HEARTBEAT_FILE");
  if (limit_.count() == 0) return;
  planned.environment["ACCELERATE_HEARTBEAT_FILE"] = heartbeats_.add(folder, planned.rank);
  look_at_ = Clock::now();
}

std::vector<StillRank> HangWatch::look(const std::vector<Worker>& workers) {
  using std::chrono::milliseconds;
  const auto now = Clock::now();
  if (!look_at_ || now < *look_at_) return {};
  look_at_ = now + std::clamp(limit_ / 8, milliseconds(10), milliseconds(5000));
  const auto still_for = heartbeats_.still(now);
  if (judge_ >= 0) return tell_judge(still_for >= limit_ / 2, workers);
  // No hang is reported before the first rank has joined; start-up time is not limited.
  if (still_for < limit_ || !heartbeats_.any_has_come()) return {};
  look_at_.reset();
  return running(workers);
}

std::vector<StillRank> HangWatch::tell_judge(bool still, const std::vector<Worker>& workers) {
  if (still != told_still_) {
    const auto message = message_of(Stillness{.is_still = still, .ranks = still ? running(workers) : Ranks{}});
    send(judge_, message.data(), message.size(), MSG_NOSIGNAL);
    told_still_ = still;
  }
  return {};
}

std::optional<std::string> HangWatch::verdict() {
  std::array<char, 4096> bytes;
  const ssize_t count = judge_ < 0 ? -1 : recv(judge_, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (count <= 0) return std::nullopt;
  heard_.append(bytes.data(), static_cast<size_t>(count));
  const auto end = heard_.find('\n');
  if (end == std::string::npos) return std::nullopt;
  look_at_.reset();
  return heard_.substr(0, end);
}

HangWatch::Ranks HangWatch::running(const std::vector<Worker>& workers) const {
  Ranks ranks;
  for (const auto& worker : workers) {
    if (!worker.running()) continue;
    ranks.push_back({worker.rank, worker.pid, heartbeats_.of(worker.rank), std::string(what_it_does(worker.pid))});
  }
  return ranks;
}

std::string stacks_of_all(const std::vector<StillRank>& ranks, std::chrono::milliseconds time) {
  std::string text;
  const auto end = HangWatch::Clock::now() + time;
  // A debugger needs seconds to load symbols, so the missing ranks are examined first.
  auto in_order = ranks;
  const auto missing = missing_ranks(ranks);
  std::stable_partition(in_order.begin(), in_order.end(), [&](const StillRank& each) {
    return std::find(missing.begin(), missing.end(), each.rank) != missing.end();
  });
  for (const auto& each : in_order) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - HangWatch::Clock::now());
    if (left.count() <= 0) break;
    text += fmt::format("accelerate_launch: stacks of worker {}:\n{}", each.rank, stacks_of(each.pid, left));
  }
  return text;
}

}  // namespace accelerate::launch
