// SPDX-License-Identifier: Apache-2.0
// Whether ranks stand still for good.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launch/plan/plan.hpp"
#include "launch/run/hang_report.hpp"
#include "launch/run/heartbeats.hpp"
#include "launch/run/lifetimes.hpp"

namespace accelerate::launch {

class HangWatch {
 public:
  using Clock = Lifetimes::Clock;

  /// limit   for which no rank may stand still; 0: for ever
  explicit HangWatch(std::chrono::milliseconds limit) : limit_(limit) {}

  /// Gives the rank a page in this folder. Another launcher's, from which this one was started, is taken from it.
  void add(WorkerPlan& planned, const std::string& folder);
  /// When look() has something to do.
  [[nodiscard]] std::optional<Clock::time_point> deadline() const { return look_at_; }
  /// The ranks that run, once, when none has moved for the limit; else nothing.
  std::vector<StillRank> look(const std::vector<Worker>& workers);

 private:
  std::chrono::milliseconds limit_;
  Heartbeats heartbeats_;
  std::optional<Clock::time_point> look_at_;
};

/// The stacks of the ranks, as far as the time goes; who is missing first.
std::string stacks_of_all(const std::vector<StillRank>& ranks, std::chrono::milliseconds time);

}  // namespace accelerate::launch
