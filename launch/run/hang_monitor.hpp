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
#include "launch/run/worker_processes.hpp"

namespace accelerate::launch {

class HangMonitor {
 public:
  using Clock = WorkerProcesses::Clock;
  using Ranks = std::vector<StalledRank>;

  /// \param limit        Maximum time without progress. 0 disables the detection.
  /// \param detector_fd  Socket to the process that combines all machines (hang_detector.hpp). It receives HangStatus
  ///   messages and replies with one line, the cause, if all ranks hang. If -1, this machine runs all ranks.
  explicit HangMonitor(std::chrono::milliseconds limit, int detector_fd = -1) : limit_(limit), detector_(detector_fd) {}

  /// Creates the rank's heartbeat page in this folder. It replaces a page of an outer launcher.
  void add(WorkerPlan& planned, const std::string& folder);
  /// Time at which poll() must run.
  [[nodiscard]] std::optional<Clock::time_point> deadline() const { return look_at_; }
  /// Returns the running ranks, once, if none has made progress within the limit. Always empty if there is a judge.
  Ranks poll(const std::vector<Worker>& workers);
  /// Descriptor to poll, or -1 if no reply can arrive.
  [[nodiscard]] int detector_fd() const noexcept { return detector_; }
  /// Returns the judge's reply, if it has arrived.
  std::optional<std::string> verdict();
  [[nodiscard]] Ranks running(const std::vector<Worker>& workers) const;

 private:
  Ranks send_hang_status(bool stalled_time, const std::vector<Worker>& workers);

  std::chrono::milliseconds limit_;
  int detector_;
  bool reported_stalled_ = false;
  std::string received_;  // incomplete reply of the judge
  Heartbeats heartbeats_;
  std::optional<Clock::time_point> look_at_;
};

/// Returns the stacks of the ranks within the given time, missing ranks first.
std::string stacks_of_all(const std::vector<StalledRank>& ranks, std::chrono::milliseconds time);

}  // namespace accelerate::launch
