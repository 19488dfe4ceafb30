// SPDX-License-Identifier: Apache-2.0
#include "accelerate/pipeline/timeline.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "accelerate/base/error.hpp"

namespace accelerate::pipeline {
namespace {

class Clock {
 public:
  Clock(const std::vector<std::vector<Action>>& orders, const StageCosts& costs)
      : orders_(orders), costs_(costs), next_(orders.size(), 0), free_at_(orders.size(), 0) {
    for (const auto& order : orders) {
      for (const auto& action : order) last_stage_ = std::max(last_stage_, action.stage);
    }
  }

  /// Executes the computation that can begin first. Returns nothing if all ranks have finished.
  std::optional<TimedAction> advance() {
    std::optional<TimedAction> first;
    bool finished = true;
    for (size_t rank = 0; rank < orders_.size(); ++rank) {
      if (next_[rank] == orders_[rank].size()) continue;
      finished = false;
      const Action& action = orders_[rank][next_[rank]];
      const auto ready = ready_at(action);
      if (!ready) continue;
      const double begin = std::max(*ready, free_at_[rank]);
      if (first && first->begin <= begin) continue;
      const double cost = action.kind == ActionKind::forward ? costs_.forward : costs_.backward;
      first = TimedAction{.action = action, .begin = begin, .end = begin + cost};
    }
    if (finished) return std::nullopt;
    if (!first) base::fail(ErrorKind::usage, {}, "timeline_of", "every rank waits for another rank");
    const auto rank = static_cast<size_t>(first->action.rank);
    ++next_[rank];
    free_at_[rank] = first->end;
    ends_[key(first->action.kind, first->action.stage, first->action.micro_batch)] = first->end;
    return first;
  }

 private:
  using Key = std::tuple<ActionKind, int64_t, int64_t>;
  static Key key(ActionKind kind, int64_t stage, int64_t micro_batch) { return {kind, stage, micro_batch}; }

  /// Returns the time at which the computation's inputs exist, or nothing if one of them has not been computed.
  [[nodiscard]] std::optional<double> ready_at(const Action& action) const {
    std::vector<Key> needed;
    if (action.kind == ActionKind::forward) {
      if (action.stage > 0) needed.push_back(key(ActionKind::forward, action.stage - 1, action.micro_batch));
    } else {
      needed.push_back(key(ActionKind::forward, action.stage, action.micro_batch));
      if (action.stage < last_stage_) {
        needed.push_back(key(ActionKind::backward, action.stage + 1, action.micro_batch));
      }
    }
    double ready = 0;
    for (const auto& each : needed) {
      const auto found = ends_.find(each);
      if (found == ends_.end()) return std::nullopt;
      ready = std::max(ready, found->second);
    }
    return ready;
  }

  const std::vector<std::vector<Action>>& orders_;
  StageCosts costs_;
  std::vector<size_t> next_;
  std::vector<double> free_at_;
  std::map<Key, double> ends_;
  int64_t last_stage_ = 0;
};

}  // namespace

std::vector<TimedAction> timeline_of(const std::vector<std::vector<Action>>& orders, const StageCosts& costs) {
  Clock clock(orders, costs);
  std::vector<TimedAction> timeline;
  while (auto action = clock.advance()) timeline.push_back(*action);
  return timeline;
}

}  // namespace accelerate::pipeline
