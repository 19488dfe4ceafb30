// SPDX-License-Identifier: Apache-2.0
// Who waited for whom, the step for its data or the data for the step.
#pragma once

#include <cstdint>
#include <string>

namespace accelerate::data {

/// Of one pass of one rank, in seconds of the clock on the wall.
struct LoadReport {
  int64_t batches = 0;
  int64_t samples = 0;
  double seconds = 0;          ///< from the loop's beginning on
  double waited_for_data = 0;  ///< the loop stood still until its next batch was there
  double data_waited = 0;      ///< batches lay ready until the loop took them, all together; 0 without workers
  int64_t num_workers = 0;

  [[nodiscard]] double samples_per_second() const { return seconds > 0 ? static_cast<double>(samples) / seconds : 0; }
  /// More than a twentieth of the time went into waiting for data.
  [[nodiscard]] bool data_is_bottleneck() const { return waited_for_data > 0.05 * seconds; }
  /// One line: the numbers, which of the two is the bottleneck, and what helps.
  [[nodiscard]] std::string text() const;
};

}  // namespace accelerate::data
