// SPDX-License-Identifier: Apache-2.0
// The ranks' heartbeats (accelerate/base/heartbeat.hpp), read in the launcher.
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

  /// Makes the rank's page in this folder. Returns the file's name, for ACCELERATE_HEARTBEAT_FILE.
  /// Throws LaunchError (1).
  std::string add(const std::string& folder, int64_t rank);
  [[nodiscard]] base::Heartbeat of(int64_t rank) const { return base::read(*pages_.at(rank)); }

  /// How long no page has changed, as far as looks tell.
  std::chrono::milliseconds still(Clock::time_point now);
  /// At the last look some rank had come to its first operation or step.
  [[nodiscard]] bool any_has_come() const noexcept { return beats_ != 0; }

 private:
  std::map<int64_t, const base::HeartbeatPage*> pages_;
  uint64_t beats_ = 0;  // of all ranks at the last look
  std::optional<Clock::time_point> since_;
};

}  // namespace accelerate::launch
