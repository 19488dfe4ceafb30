// SPDX-License-Identifier: Apache-2.0
// Hang detection for the ranks of one machine.
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

  /// \param limit  Maximum time without progress. 0 disables the detection.
  /// \param judge  Socket to the process that combines all machines (hang_judge.hpp). It receives Stillness messages
  /// and
  ///               replies with one line, the cause, if all ranks hang. If -1, this machine runs all ranks.
  explicit HangWatch(std::chrono::milliseconds limit, int judge = -1) : limit_(limit), judge_(judge) {}

  /// Gives the rank a page in this folder. Another launcher's, from which this one was started, is taken from it.
  void add(WorkerPlan& planned, const std::string& folder);
  /// When look() has something to do.
  [[nodiscard]] std::optional<Clock::time_point> deadline() const { return look_at_; }
  /// The ranks that run, once, when none has moved for the limit; else nothing. With a judge always nothing.
  Ranks look(const std::vector<Worker>& workers);
  /// Descriptor to poll, or -1 if no reply can arrive.
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

/// Returns the stacks of the ranks within the given time, missing ranks first.
std::string stacks_of_all(const std::vector<StillRank>& ranks, std::chrono::milliseconds time);

}  // namespace accelerate::launch
