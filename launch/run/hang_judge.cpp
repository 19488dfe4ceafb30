// SPDX-License-Identifier: Apache-2.0
#include "launch/run/hang_judge.hpp"

#include <algorithm>
#include <utility>

namespace accelerate::launch {

void HangJudge::hear(int64_t part, Stillness says) {
  if (says.is_still) {
    still_.insert_or_assign(part, std::move(says));
  } else {
    still_.erase(part);
  }
}

std::optional<std::string> HangJudge::verdict() const {
  if (limit_.count() == 0 || static_cast<int64_t>(still_.size()) < parts_) return std::nullopt;
  std::vector<StillRank> all;
  for (const auto& [part, still] : still_) all.insert(all.end(), still.ranks.begin(), still.ranks.end());
  std::sort(all.begin(), all.end(), [](const auto& one, const auto& other) { return one.rank < other.rank; });
  const bool any_has_come = std::any_of(all.begin(), all.end(), [](const auto& each) { return each.beat.beats != 0; });
  return any_has_come ? std::optional(hang_cause(all, limit_)) : std::nullopt;
}

}  // namespace accelerate::launch
