// SPDX-License-Identifier: Apache-2.0
#include "launch/run/hang_watch.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "launch/run/stacks.hpp"
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
  std::vector<StillRank> ranks;
  if (!look_at_ || now < *look_at_) return ranks;
  look_at_ = now + std::clamp(limit_ / 8, milliseconds(10), milliseconds(5000));
  if (heartbeats_.still(now) < limit_) return ranks;
  look_at_.reset();
  for (const auto& worker : workers) {
    if (!worker.running()) continue;
    ranks.push_back({worker.rank, worker.pid, heartbeats_.of(worker.rank), std::string(what_it_does(worker.pid))});
  }
  return ranks;
}

std::string stacks_of_all(const std::vector<StillRank>& ranks, std::chrono::milliseconds time) {
  std::string text;
  const auto end = HangWatch::Clock::now() + time;
  // A debugger reads symbols for seconds: who is missing comes first.
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
