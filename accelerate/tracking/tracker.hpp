// SPDX-License-Identifier: Apache-2.0
// Interface of trackers, which store logged values.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/tracking/values.hpp"

namespace accelerate::tracking {

/// Facts about a new run.
struct Run {
  std::string project{};
  std::filesystem::path folder{};  ///< existing folder <logging_dir>/<project>; empty without a logging_dir
  RankContext place{};
};

/// A destination for logged values. User-defined trackers derive from it and are passed to log_with.
///
/// If a function throws, the error is logged once and training continues; only an exception of start() is passed on,
/// before training starts.
/// Thread safety: functions are called on the logging threads, one call at a time for each Accelerator.
class Tracker {
 public:
  virtual ~Tracker() = default;

  /// Name for get_tracker().
  [[nodiscard]] virtual std::string name() const = 0;
  /// True if the tracker writes into Run::folder. It is then rejected if no logging_dir is given.
  [[nodiscard]] virtual bool requires_logging_directory() const { return false; }
  /// If false, the tracker runs on every rank, not only on the main process.
  [[nodiscard]] virtual bool main_process_only() const { return true; }

  /// Called by init_trackers() at the start of a run.
  virtual void start(const Run&) {}
  /// Receives the config of init_trackers().
  virtual void store_init_configuration(const Values&) {}
  /// Receives the values of log() unchanged: a Value may be a group (see flattened()).
  virtual void log(const Values& values, Step step) = 0;
  /// Texts, images and histograms are ignored unless a tracker overrides these functions.
  virtual void log_text(const std::string& /*name*/, const std::string& /*text*/, Step) {}
  virtual void log_images(const std::string& /*name*/, const std::vector<Image>&, Step) {}
  virtual void log_histogram(const std::string& /*name*/, const Histogram&, Step) {}
  /// Called at the end of a run, by end_training() or by the destructor of the Accelerator.
  virtual void finish() {}
};

}  // namespace accelerate::tracking
