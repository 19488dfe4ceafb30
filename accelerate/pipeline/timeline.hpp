// SPDX-License-Identifier: Apache-2.0
// When each forward and backward of a step runs, if transfers take no time. Private.
#pragma once

#include <vector>

#include "accelerate/pipeline/schedule.hpp"

namespace accelerate::pipeline {

struct TimedAction {
  Action action{};
  double begin = 0;
  double end = 0;
};

/// Each rank executes its computations in the given order and waits for those of other ranks that they need.
/// \param orders  Forwards and backwards of each rank.
/// \returns the computations in the order of their begin; those that begin together in the order of the ranks.
/// \throws Error (usage) if no rank can continue.
[[nodiscard]] std::vector<TimedAction> timeline_of(const std::vector<std::vector<Action>>& orders,
                                                   const StageCosts& costs);

}  // namespace accelerate::pipeline
