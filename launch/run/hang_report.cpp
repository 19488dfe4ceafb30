// SPDX-License-Identifier: Apache-2.0
#include "launch/run/hang_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace accelerate::launch {
namespace {

bool waits(const StillRank& each) { return each.beat.waits_in != 0; }

/// The rank that waits and has begun most operations; null where none waits.
const StillRank* farthest_waiting(const std::vector<StillRank>& ranks) {
  const StillRank* farthest = nullptr;
  for (const auto& each : ranks) {
    if (waits(each) && (farthest == nullptr || each.beat.sequence > farthest->beat.sequence)) farthest = &each;
  }
  return farthest;
}

/// "worker 3 is", "workers 0 and 2 are"
std::string workers(const std::vector<int64_t>& ranks, std::string_view one, std::string_view several) {
  if (ranks.size() == 1) return fmt::format("worker {} {}", ranks.front(), one);
  return fmt::format("workers {} and {} {}", fmt::join(ranks.begin(), ranks.end() - 1, ", "), ranks.back(), several);
}

}  // namespace

std::vector<int64_t> missing_ranks(const std::vector<StillRank>& ranks) {
  const auto* farthest = farthest_waiting(ranks);
  if (farthest == nullptr) return {};
  std::vector<int64_t> idle;
  std::vector<int64_t> behind;
  for (const auto& each : ranks) {
    if (!waits(each)) idle.push_back(each.rank);
    if (each.beat.sequence < farthest->beat.sequence) behind.push_back(each.rank);
  }
  return idle.empty() ? behind : idle;
}

std::string hang_cause(const std::vector<StillRank>& ranks, std::chrono::milliseconds still) {
  auto text = fmt::format("no rank has moved for {:g} s", std::chrono::duration<double>(still).count());
  const auto missing = missing_ranks(ranks);
  if (missing.empty()) {
    const auto* waiting = farthest_waiting(ranks);
    return waiting == nullptr ? text : fmt::format("{}; all on this machine wait in {}", text, waiting->beat.call);
  }
  std::vector<int64_t> waiting;
  for (const auto& each : ranks) {
    if (waits(each) && std::find(missing.begin(), missing.end(), each.rank) == missing.end()) {
      waiting.push_back(each.rank);
    }
  }
  return fmt::format("{}; {} missing, {} in {}", text, workers(missing, "is", "are"), workers(waiting, "waits", "wait"),
                     farthest_waiting(ranks)->beat.call);
}

std::string hang_lines(const std::vector<StillRank>& ranks) {
  std::string text;
  for (const auto& [rank, pid, beat, does] : ranks) {
    const auto where = beat.beats == 0 ? "it has not come to its first operation"
                       : beat.waits_in < 0
                           ? fmt::format("it made {} steps and waits for a message", beat.step)
                           : fmt::format("it made {} steps {} {}", beat.step,
                                         beat.waits_in > 0 ? "and waits in" : "and is after", beat.call);
    text += fmt::format("accelerate_launch: worker {} (pid {}) {}; {}\n", rank, pid, does, where);
  }
  return text;
}

}  // namespace accelerate::launch
