// SPDX-License-Identifier: Apache-2.0
// Hang detection over all machines: combines the hang status of each machine.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/run/hang_status.hpp"

namespace accelerate::launch {

/// A machine reports a hang after its ranks have made no progress for half the limit, and reports progress as soon as
/// it sees any. The second half of the limit passes here before a verdict, so that a progress report that is still on
/// its way can arrive: a rank that waited for another machine may already have continued.
class HangDetector {
 public:
  using Clock = std::chrono::steady_clock;

  /// \param parts  Number of machines, which together run all ranks of the job.
  /// \param limit  Maximum time without progress of any rank. 0 disables the detection.
  HangDetector(int64_t parts, std::chrono::milliseconds limit) : parts_(parts), limit_(limit) {}

  void update(int64_t part, HangStatus status, Clock::time_point now);
  /// Records that the ranks of a machine ended successfully, which counts as progress.
  void mark_finished(int64_t part, Clock::time_point now);

  /// Time of the verdict if no rank makes progress before.
  [[nodiscard]] std::optional<Clock::time_point> deadline() const;
  /// Returns the cause (hang_report.hpp) if no rank of any machine made progress within the limit and at least one rank
  /// had started an operation.
  [[nodiscard]] std::optional<std::string> verdict(Clock::time_point now) const;

 private:
  struct Part {
    Clock::time_point moved;  // time of the last known progress
    std::vector<StalledRank> ranks;
  };

  int64_t parts_;
  std::chrono::milliseconds limit_;
  std::map<int64_t, Part> still_;
};

}  // namespace accelerate::launch
