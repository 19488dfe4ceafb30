// SPDX-License-Identifier: Apache-2.0
// Reads the ranks' heartbeats (accelerate/base/heartbeat.hpp) in the launcher.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "accelerate/base/heartbeat.hpp"

namespace accelerate::launch {

class Heartbeats {
 public:
  using Clock = std::chrono::steady_clock;

  Heartbeats() = default;
  ~Heartbeats();
  Heartbeats(const Heartbeats&) = delete;
  Heartbeats& operator=(const Heartbeats&) = delete;

  /// Creates the rank's heartbeat page in this folder. Returns the file name for ACCELERATE_HEARTBEAT_FILE.
  /// \throws LaunchError (1) if the file cannot be created.
  std::string add(const std::string& folder, int64_t rank);
  [[nodiscard]] base::Heartbeat of(int64_t rank) const { return base::read_heartbeat(*pages_.at(rank)); }

  /// Time since the last observed change of any page.
  std::chrono::milliseconds stalled_time(Clock::time_point now);
  /// True if at least one rank had reached its first operation or step when the pages were last read.
  [[nodiscard]] bool any_rank_active() const noexcept { return beats_ != 0; }

 private:
  std::map<int64_t, const base::HeartbeatPage*> pages_;
  uint64_t beats_ = 0;  // sum over all ranks at the last read
  std::optional<Clock::time_point> since_;
};

}  // namespace accelerate::launch
