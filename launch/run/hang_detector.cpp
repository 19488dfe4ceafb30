// SPDX-License-Identifier: Apache-2.0
#include "launch/run/hang_detector.hpp"

#include <algorithm>
#include <utility>

namespace accelerate::launch {

void HangDetector::update(int64_t part, HangStatus status, Clock::time_point now) {
  still_.erase(part);
  if (status.is_still) still_.emplace(part, Part{.moved = now - limit_ / 2, .ranks = std::move(status.ranks)});
}

void HangDetector::mark_finished(int64_t part, Clock::time_point now) {
  still_.insert_or_assign(part, Part{.moved = now, .ranks = {}});
}

std::optional<HangDetector::Clock::time_point> HangDetector::deadline() const {
  if (limit_.count() == 0 || static_cast<int64_t>(still_.size()) < parts_) return std::nullopt;
  const auto joined_mpi_init = [](const StalledRank& rank) { return rank.beat.beats != 0; };
  auto moved = Clock::time_point::min();
  bool any_rank_active = false;
  for (const auto& [number, part] : still_) {
    moved = std::max(moved, part.moved);
    any_rank_active |= std::any_of(part.ranks.begin(), part.ranks.end(), joined_mpi_init);
  }
  return any_rank_active ? std::optional(moved + limit_) : std::nullopt;
}

std::optional<std::string> HangDetector::verdict(Clock::time_point now) const {
  const auto end = deadline();
  if (!end || now < *end) return std::nullopt;
  std::vector<StalledRank> all;
  for (const auto& [number, part] : still_) all.insert(all.end(), part.ranks.begin(), part.ranks.end());
  std::sort(all.begin(), all.end(), [](const auto& one, const auto& other) { return one.rank < other.rank; });
  return hang_cause(all, limit_);
}

}  // namespace accelerate::launch
