// SPDX-License-Identifier: Apache-2.0
// Reads a run's metrics.jsonl.
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

/// Values of one name over the steps. Non-finite values are omitted and counted.
struct Series {
  std::string name{};
  std::vector<Point> points{};
  int64_t not_finite = 0;
};

/// One run: the lines from one configuration line to the next.
struct RunLog {
  std::string project{};
  std::vector<std::pair<std::string, std::string>> config{};  ///< values in text form
  std::vector<Series> series{};                               ///< in order of first appearance
  std::vector<std::pair<std::string, std::string>> texts{};   ///< last text of each name
  double begin_time = 0.0, end_time = 0.0;                    ///< seconds since 1970; 0 if unknown
  int64_t lines = 0;
};

struct RunLogs {
  std::vector<RunLog> runs{};
  int64_t unreadable_lines = 0;  ///< truncated by a full disk, or in another format
};

/// Lines without a step continue from the previous step. Never throws because of a line's content.
[[nodiscard]] RunLogs parse_run_logs(std::string_view jsonl);

/// Steps per second between lines with step and time, in about one hundred intervals. Empty with too few lines.
[[nodiscard]] Series throughput_of(const Series& times);

}  // namespace accelerate::tracking
