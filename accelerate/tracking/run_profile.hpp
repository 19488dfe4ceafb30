// SPDX-License-Identifier: Apache-2.0
// Profiler measurements of each rank, read from profile_summary.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::tracking {

struct OperatorCost {
  std::string name{};
  int64_t calls = 0;
  double self_ms = 0.0;    ///< without called operators
  double total_ms = 0.0;   ///< including called operators
  double device_ms = 0.0;  ///< device time of work that it launched itself; 0 on the CPU
  double gflop = 0.0;      ///< 0 if not counted
};

/// Measurements of one rank over all recorded steps, in milliseconds of its host clock.
struct RankProfile {
  int64_t rank = 0;
  std::string host{};
  std::vector<double> step_ms{};     ///< one for each step
  double data_wait_ms = 0.0;         ///< time in which the loop waited for its next batch
  double communication_ms = 0.0;     ///< time in which at least one collective ran
  double overlapped_ms = 0.0;        ///< part of it in which operators computed
  double device_busy_ms = 0.0;       ///< time in which the device executed anything; 0 on the CPU
  double gflop = 0.0;                ///< 0 if not counted
  double peak_gflop_per_s = 0.0;     ///< of its device; 0 if unknown
  int64_t peak_allocated_bytes = 0;  ///< of its device; 0 without a device
  int64_t peak_resident_bytes = 0;   ///< of the process; 0 if unknown
  std::vector<OperatorCost> operators{};

  [[nodiscard]] double length_ms() const;
};

/// Never throws: missing values and values of another type count as zero.
/// \returns the ranks, or nothing if the text is not such a file.
[[nodiscard]] std::optional<std::vector<RankProfile>> parse_run_profile(std::string_view json);

/// Adds up the operators of all ranks by name, sorted by device time, then by self time, longest first.
[[nodiscard]] std::vector<OperatorCost> operators_of(const std::vector<RankProfile>& ranks);

/// Returns a sentence about the bottleneck: data if a rank waited for more than 5 % of its steps, as in a loader's
/// report(), otherwise the step.
[[nodiscard]] std::string data_verdict(const std::vector<RankProfile>& ranks);

/// Returns a section of the page: the bottleneck, one row per rank, a chart of step times, and the longest operators.
[[nodiscard]] std::string profile_html(const std::vector<RankProfile>& ranks, const std::string& title);

}  // namespace accelerate::tracking
