// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/loading_report.hpp"

#include <fmt/format.h>

#include "accelerate/base/log.hpp"

namespace accelerate::data {
namespace {

double seconds(LoadingTimer::Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

std::string LoadingReport::text() const {
  if (batches == 0) return "no batch was taken yet";
  const double shard_spec = seconds > 0 ? 100 * data_wait_seconds / seconds : 0;
  const auto taken =  // a batch without rows has an unknown number of samples
      samples > 0 ? fmt::format("{} samples in {} batches, {:.0f} samples/s", samples, batches, samples_per_second())
                  : fmt::format("{} batches", batches);
  const auto numbers =
      fmt::format("{}; the step waited {:.1f} % of {:.3f} s for data, batches waited {:.3f} s for the step", taken,
                  shard_spec, seconds, prefetched_seconds);
  if (!data_is_bottleneck())
    return numbers +
           ": the step is the bottleneck, the data keep up; a faster step (a larger batch, mixed precision) would help";
  if (num_workers < 0) return numbers + ": the data are the bottleneck; a cheaper read would help";
  if (num_workers == 0) {
    return numbers + ": the data are the bottleneck; num_workers = 1 reads beside the step" +
           (single_reader ? ", unless the data are gathered on a device" : "");
  }
  if (single_reader)
    return numbers + ": the data are the bottleneck, and are read by one thread; a cheaper read would help";
  return numbers +
         fmt::format(": the data are the bottleneck; more than {} workers, or a cheaper read, would help", num_workers);
}

void LoadingTimer::start_request() {
  requested_ = Clock::now();
  report_->seconds = seconds(requested_ - began_);
}

void LoadingTimer::arrived(int64_t samples, std::optional<Clock::time_point> since) {
  const auto now = Clock::now();
  ++report_->batches;
  report_->samples += samples;
  report_->seconds = seconds(now - began_);
  report_->data_wait_seconds += seconds(now - requested_);
  if (since && *since < requested_) report_->prefetched_seconds += seconds(requested_ - *since);
}

void LoadingTimer::waited(Clock::duration duration) {
  report_->data_wait_seconds += seconds(duration);
  report_->seconds = seconds(Clock::now() - began_);
}

void log_report(int64_t epoch, const LoadingReport& report) {
  base::log(base::LogLevel::info, {}, "loader: epoch {}: {}", epoch, report.text());
}

}  // namespace accelerate::data
