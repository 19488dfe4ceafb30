// SPDX-License-Identifier: Apache-2.0
// Measures how long the loop waits for data, and data for the loop.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace accelerate::data {

/// Measurements of one pass of one rank, in seconds of wall-clock time.
struct LoadingReport {
  int64_t batches = 0;
  int64_t samples = 0;            ///< 0 if batches have no rows
  double seconds = 0;             ///< since the start of the loop
  double data_wait_seconds = 0;   ///< seconds in which the loop waited for its next batch
  double prefetched_seconds = 0;  ///< total seconds in which read batches waited for the loop; 0 without workers
  int64_t num_workers = 0;        ///< number of workers; -1 for a foreign loader
  bool single_reader = false;     ///< at most one worker can read: a stream, or a source that is not thread-safe

  [[nodiscard]] double samples_per_second() const { return seconds > 0 ? static_cast<double>(samples) / seconds : 0; }
  /// True if the loop waited for data for more than 5 % of the time.
  [[nodiscard]] bool data_is_bottleneck() const { return data_wait_seconds > 0.05 * seconds; }
  /// One line with the numbers, the bottleneck and the remedy.
  [[nodiscard]] std::string text() const;
};

/// Measures the times of a pass.
class LoadingTimer {
 public:
  using Clock = std::chrono::steady_clock;

  /// \param workers  Provides the number of workers.
  explicit LoadingTimer(const LoadingReport& workers) : report_(std::make_shared<LoadingReport>(workers)) {}

  /// The loop requests its next batch.
  void start_request();
  /// The batch is available with this number of samples.
  /// \param since  Time at which it became available; unset if it was read while the loop waited.
  void arrived(int64_t samples, std::optional<Clock::time_point> since = {});
  /// The loop waited for this time to obtain a later batch.
  void waited(Clock::duration duration);
  [[nodiscard]] const std::shared_ptr<LoadingReport>& report() const { return report_; }

 private:
  std::shared_ptr<LoadingReport> report_;
  Clock::time_point began_ = Clock::now();
  Clock::time_point requested_ = began_;
};

/// Logs one line (level info).
void log_report(int64_t epoch, const LoadingReport& report);

}  // namespace accelerate::data
