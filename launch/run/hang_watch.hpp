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
  ///               and replies with one line, the cause, if all ranks hang. If -1, this machine runs all ranks.
  explicit HangWatch(std::chrono::milliseconds limit, int judge = -1) : limit_(limit), judge_(judge) {}

  /// Creates the rank's heartbeat page in this folder. It replaces a page of an outer launcher.
  void add(WorkerPlan& planned, const std::string& folder);
  /// Time at which look() must run.
  [[nodiscard]] std::optional<Clock::time_point> deadline() const { return look_at_; }
  /// Returns the running ranks, once, if none has made progress within the limit. Always empty if there is a judge.
  Ranks look(const std::vector<Worker>& workers);
  /// Descriptor to poll, or -1 if no reply can arrive.
  [[nodiscard]] int judge() const noexcept { return judge_; }
  /// Returns the judge's reply, if it has arrived.
  std::optional<std::string> verdict();
  [[nodiscard]] Ranks running(const std::vector<Worker>& workers) const;

 private:
  Ranks tell_judge(bool still, const std::vector<Worker>& workers);

  std::chrono::milliseconds limit_;
  int judge_;
  bool told_still_ = false;
  std::string heard_;  // incomplete reply of the judge
  Heartbeats heartbeats_;
  std::optional<Clock::time_point> look_at_;
};

/// Returns the stacks of the ranks within the given time, missing ranks first.
std::string stacks_of_all(const std::vector<StillRank>& ranks, std::chrono::milliseconds time);

}  // namespace accelerate::launch
