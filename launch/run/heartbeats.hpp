// SPDX-License-Identifier: Apache-2.0
// The ranks' heartbeats (accelerate/base/heartbeat.hpp), read in the launcher.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
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

  /// How long no page has changed, as far as looks tell; zero until the first rank has come: it may take its time.
  std::chrono::milliseconds still(Clock::time_point now);

 private:
  std::map<int64_t, const base::HeartbeatPage*> pages_;
  uint64_t beats_ = 0;  // of all ranks at the last look
  Clock::time_point since_{};
};

}  // namespace accelerate::launch
