// SPDX-License-Identifier: Apache-2.0
// Waiting times of the loop for its data and of the data for the loop.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace accelerate::data {

/// Of one pass of one rank, in seconds of the clock on the wall.
struct LoadReport {
  int64_t batches = 0;
  int64_t samples = 0;         ///< 0 if batches have no rows
  double seconds = 0;          ///< from the loop's beginning on
  double waited_for_data = 0;  ///< seconds in which the loop waited for its next batch
  double data_waited = 0;      ///< total seconds in which read batches waited for the loop; 0 without workers
  int64_t num_workers = 0;     ///< number of reading workers; -1 for a foreign loader
  bool one_reader = false;     ///< more would not read: a stream, or a source that is not thread-safe

  [[nodiscard]] double samples_per_second() const { return seconds > 0 ? static_cast<double>(samples) / seconds : 0; }
  /// More than a twentieth of the time went into waiting for data.
  [[nodiscard]] bool data_is_bottleneck() const { return waited_for_data > 0.05 * seconds; }
  /// One line: the numbers, which of the two is the bottleneck, and what helps.
  [[nodiscard]] std::string text() const;
};

/// Measures the times of a pass.
class LoadClock {
 public:
  using Clock = std::chrono::steady_clock;

  /// \param workers  Provides the number of workers.
  explicit LoadClock(const LoadReport& workers) : report_(std::make_shared<LoadReport>(workers)) {}

  /// The loop requests its next batch.
  void asked();
  /// The batch is available with this number of samples.
  /// \param since  Time at which it became available; unset if it was read while the loop waited.
  void arrived(int64_t samples, std::optional<Clock::time_point> since = {});
  /// The loop waited for this time to obtain a later batch.
  void waited(Clock::duration duration);
  [[nodiscard]] const std::shared_ptr<LoadReport>& report() const { return report_; }

 private:
  std::shared_ptr<LoadReport> report_;
  Clock::time_point began_ = Clock::now();
  Clock::time_point asked_ = began_;
};

/// One line of the log (level info).
void log_report(int64_t epoch, const LoadReport& report);

}  // namespace accelerate::data
