// SPDX-License-Identifier: Apache-2.0
// What a run's metrics.jsonl says, read back.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace accelerate::tracking {

struct Point {
  double step = 0.0, value = 0.0;
};

/// One number over the steps. What is not finite is left out and counted.
struct Series {
  std::string name{};
  std::vector<Point> points{};
  int64_t not_finite = 0;
};

/// One run: from a line with a configuration to the next.
struct RunLog {
  std::string project{};
  std::vector<std::pair<std::string, std::string>> config{};  ///< values as text
  std::vector<Series> series{};                               ///< in the order in which they came
  std::vector<std::pair<std::string, std::string>> texts{};   ///< the last of each name
  double begin_time = 0.0, end_time = 0.0;                    ///< seconds since 1970; 0: not known
  int64_t lines = 0;
};

struct RunLogs {
  std::vector<RunLog> runs{};
  int64_t unreadable_lines = 0;  ///< cut by a full disk, or somebody else's
};

/// Lines without a step count on from the last. Never throws for what stands in a line.
[[nodiscard]] RunLogs parse_run_logs(std::string_view jsonl);

/// Steps per second between lines that have step and time, in about a hundred pieces; empty where there are too few.
[[nodiscard]] Series throughput_of(const Series& times);

}  // namespace accelerate::tracking
