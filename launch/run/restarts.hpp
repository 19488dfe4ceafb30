// SPDX-License-Identifier: Apache-2.0
// Whether all workers are started again after one failed.
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
  /// Workers that request a restart get it without counting against max_restarts.
  bool when_asked = false;
  /// Before a restart; doubled for each start in a row that failed at once.
  std::chrono::milliseconds backoff = std::chrono::milliseconds(500);
  std::chrono::milliseconds longest_backoff = std::chrono::seconds(60);
  /// A start that lasted less failed at once.
  std::chrono::milliseconds at_once = std::chrono::seconds(10);
  /// So many starts in a row that failed at once and alike are not tried again.
  size_t hopeless = 3;
};

/// A restart attempt that failed or requested another attempt.
struct FailedStart {
  std::string cause{};  ///< "exit code 3"
  std::chrono::milliseconds lasted{};
  bool asks_for_another = false;
};

struct RestartDecision {
  std::optional<std::chrono::milliseconds> after{};  ///< delay before the next attempt; unset if there is none
  std::string line{};                                ///< message for the log; may be empty
};

/// \param starts  All failed attempts in order, including the last one. Pure function.
RestartDecision decide(const std::vector<FailedStart>& starts, const RestartOptions& options);

}  // namespace accelerate::launch
