// SPDX-License-Identifier: Apache-2.0
// Decides whether all workers are restarted after a failure.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace accelerate::launch {

struct RestartOptions {
  int64_t max_restarts = 0;
  /// If true, workers that request a restart get it, without counting against max_restarts.
  bool on_request = false;
  /// Delay before a restart; doubled for each consecutive attempt that failed at once.
  std::chrono::milliseconds backoff = std::chrono::milliseconds(500);
  std::chrono::milliseconds max_backoff = std::chrono::seconds(60);
  /// An attempt that lasted less than this time failed at once.
  std::chrono::milliseconds min_uptime = std::chrono::seconds(10);
  /// After this number of consecutive attempts that failed at once with the same cause, the job is not restarted.
  size_t max_identical_failures = 3;
};

/// A restart attempt that failed or requested another attempt.
struct FailedAttempt {
  std::string cause{};  ///< "exit code 3"
  std::chrono::milliseconds lasted{};
  bool restart_requested = false;
};

struct RestartDecision {
  std::optional<std::chrono::milliseconds> after{};  ///< delay before the next attempt; unset if there is none
  std::string line{};                                ///< message for the log; may be empty
};

/// \param starts  All failed attempts in order, including the last one. Pure function.
RestartDecision decide(const std::vector<FailedAttempt>& starts, const RestartOptions& options);

}  // namespace accelerate::launch
