// SPDX-License-Identifier: Apache-2.0
#include "launch/run/hang_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace accelerate::launch {
namespace {

bool waits(const StalledRank& each) { return each.beat.waiting_in != 0; }

/// Returns the waiting rank with the most started operations, or null if none waits.
const StalledRank* latest_waiting_sequence(const std::vector<StalledRank>& ranks) {
  const StalledRank* farthest = nullptr;
  for (const auto& each : ranks) {
    if (waits(each) && (farthest == nullptr || each.beat.sequence > farthest->beat.sequence)) farthest = &each;
  }
  return farthest;
}

double in_seconds(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }

/// Returns "worker 3 is", "workers 0 and 2 are" or "workers 0, 1, 2 ... and 61 more are".
std::string workers(const std::vector<int64_t>& ranks, std::string_view one, std::string_view several) {
  constexpr int64_t most = 16;
  const auto count = static_cast<int64_t>(ranks.size());
  if (count == 1) return fmt::format("worker {} {}", ranks.front(), one);
  if (count > most) {
    return fmt::format("workers {} ... and {} more {}", fmt::join(ranks.begin(), ranks.begin() + most, ", "),
                       count - most, several);
  }
  return fmt::format("workers {} and {} {}", fmt::join(ranks.begin(), ranks.end() - 1, ", "), ranks.back(), several);
}

}  // namespace

std::vector<int64_t> idle_ranks(const std::vector<StalledRank>& ranks) {
  std::vector<int64_t> idle;
  for (const auto& each : ranks) {
    if (!waits(each)) idle.push_back(each.rank);
  }
  return idle;
}

std::vector<int64_t> missing_ranks(const std::vector<StalledRank>& ranks) {
  const auto* farthest = latest_waiting_sequence(ranks);
  if (farthest == nullptr) return {};
  auto idle = idle_ranks(ranks);
  std::vector<int64_t> behind;
  for (const auto& each : ranks) {
    if (each.beat.sequence < farthest->beat.sequence) behind.push_back(each.rank);
  }
  return idle.empty() ? behind : idle;
}

std::string hang_cause(const std::vector<StalledRank>& ranks, std::chrono::milliseconds stalled_time) {
  auto text = fmt::format("no rank has moved for {:g} s", in_seconds(stalled_time));
  const auto missing = missing_ranks(ranks);
  if (missing.empty()) {
    const auto* waiting = latest_waiting_sequence(ranks);
    return waiting == nullptr ? text : fmt::format("{}; all wait in {}", text, waiting->beat.call);
  }
  std::vector<int64_t> waiting;
  for (const auto& each : ranks) {
    if (waits(each) && std::find(missing.begin(), missing.end(), each.rank) == missing.end()) {
      waiting.push_back(each.rank);
    }
  }
  return fmt::format("{}; {} missing, {} in {}", text, workers(missing, "is", "are"), workers(waiting, "waits", "wait"),
                     latest_waiting_sequence(ranks)->beat.call);
}

std::string lone_hang_cause(const StalledRank& rank, std::chrono::milliseconds stalled_time) {
  return fmt::format(
      "worker {} has not moved for {:g} s{}; the job's other ranks are not seen from here, where each was started by "
      "itself",
      rank.rank, in_seconds(stalled_time), waits(rank) ? " and waits in " + rank.beat.call : "");
}

std::string hang_lines(const std::vector<StalledRank>& ranks) {
  std::string text;
  for (const auto& [rank, pid, beat, does] : ranks) {
    const auto where = beat.beats == 0 ? "it has not reached its first operation"
                       : beat.waiting_in < 0
                           ? fmt::format("it made {} steps and waits for a message", beat.step)
                           : fmt::format("it made {} steps {} {}", beat.step,
                                         beat.waiting_in > 0 ? "and waits in" : "and is after", beat.call);
    text += fmt::format("accelerate_launch: worker {} (pid {}) {}; {}\n", rank, pid, does, where);
  }
  return text;
}

}  // namespace accelerate::launch
