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
  using Ranks = std::vector<StillRank>;

  /// limit   for which no rank may stand still; 0: for ever
  /// judge   a socket to whoever knows the ranks of all machines (hang_judge.hpp): told by Stillness messages, it
  ///         answers with a line, the cause, when all stand still; -1: the ranks here are all, and judged here
  explicit HangWatch(std::chrono::milliseconds limit, int judge = -1) : limit_(limit), judge_(judge) {}

  /// Gives the rank a page in this folder. Another launcher's, from which this one was started, is taken from it.
  void add(WorkerPlan& planned, const std::string& folder);
  /// When look() has something to do.
  [[nodiscard]] std::optional<Clock::time_point> deadline() const { return look_at_; }
  /// The ranks that run, once, when none has moved for the limit; else nothing. With a judge always nothing.
  Ranks look(const std::vector<Worker>& workers);
  /// To wait for; -1: nothing will come.
  [[nodiscard]] int judge() const noexcept { return judge_; }
  /// What the judge has answered.
  std::optional<std::string> verdict();
  [[nodiscard]] Ranks running(const std::vector<Worker>& workers) const;

 private:
  Ranks tell_judge(bool still, const std::vector<Worker>& workers);

  std::chrono::milliseconds limit_;
  int judge_;
  bool told_still_ = false;
  std::string heard_;  // of the judge
  Heartbeats heartbeats_;
  std::optional<Clock::time_point> look_at_;
};

/// The stacks of the ranks, as far as the time goes; who is missing first.
std::string stacks_of_all(const std::vector<StillRank>& ranks, std::chrono::milliseconds time);

}  // namespace accelerate::launch
