// SPDX-License-Identifier: Apache-2.0
// What a profiler measured on each rank, read back from its profile_summary.json.
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
  double total_ms = 0.0;   ///< with it
  double device_ms = 0.0;  ///< device time of work that it started itself; 0 on the CPU
  double gflop = 0.0;      ///< 0 if not counted
};

/// Of all recorded steps of a rank; milliseconds of its host.
struct RankProfile {
  int64_t rank = 0;
  std::string host{};
  std::vector<double> step_ms{};     ///< one for each step
  double data_wait_ms = 0.0;         ///< time in which the loop waited for its next batch
  double communication_ms = 0.0;     ///< at least one collective ran
  double overlapped_ms = 0.0;        ///< ... while operators computed
  double device_busy_ms = 0.0;       ///< time in which the device executed anything; 0 on the CPU
  double gflop = 0.0;                ///< 0 if not counted
  double peak_gflop_per_s = 0.0;     ///< of its device; 0 if unknown
  int64_t peak_allocated_bytes = 0;  ///< of its device; 0 without a device
  int64_t peak_resident_bytes = 0;   ///< of the process; 0 if unknown
  std::vector<OperatorCost> operators{};

  [[nodiscard]] double length_ms() const;
};

/// Never throws: missing values and values of another type count as zero.
/// \returns nothing if the text is not such a file.
[[nodiscard]] std::optional<std::vector<RankProfile>> parse_run_profile(std::string_view json);

/// Operators of all ranks, added up by name, longest time on the device first, then longest self time.
[[nodiscard]] std::vector<OperatorCost> operators_of(const std::vector<RankProfile>& ranks);

/// Whether data or steps are the bottleneck: the same twentieth as a loader's report() goes by.
[[nodiscard]] std::string data_verdict(const std::vector<RankProfile>& ranks);

/// A part of a page: the verdict, a row for each rank, step times as a chart, the longest operators.
[[nodiscard]] std::string profile_html(const std::vector<RankProfile>& ranks, const std::string& title);

}  // namespace accelerate::tracking
