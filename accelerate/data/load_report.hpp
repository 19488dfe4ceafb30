// SPDX-License-Identifier: Apache-2.0
// Who waited for whom, the step for its data or the data for the step.
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
  int64_t samples = 0;         ///< 0 where batches do not tell theirs: they have no rows
  double seconds = 0;          ///< from the loop's beginning on
  double waited_for_data = 0;  ///< the loop stood still until its next batch was there
  double data_waited = 0;      ///< batches lay ready until the loop took them, all together; 0 without workers
  int64_t num_workers = 0;     ///< that read; -1: the loader is not ours
  bool one_reader = false;     ///< more would not read: a stream, or a source that is not thread-safe

  [[nodiscard]] double samples_per_second() const { return seconds > 0 ? static_cast<double>(samples) / seconds : 0; }
  /// More than a twentieth of the time went into waiting for data.
  [[nodiscard]] bool data_is_bottleneck() const { return waited_for_data > 0.05 * seconds; }
  /// One line: the numbers, which of the two is the bottleneck, and what helps.
  [[nodiscard]] std::string text() const;
};

/// Takes the times of a pass while it goes on.
class LoadClock {
 public:
  using Clock = std::chrono::steady_clock;

  /// workers   says who reads
  explicit LoadClock(const LoadReport& workers) : report_(std::make_shared<LoadReport>(workers)) {}

  /// The loop asks for its next batch.
  void asked();
  /// That is there, with so many samples. since   it has been; unset: it was read while the loop waited
  void arrived(int64_t samples, std::optional<Clock::time_point> since = {});
  /// The loop stood still for so long to have a later one.
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
