// SPDX-License-Identifier: Apache-2.0
// What a tracker is: where a run's numbers go while it trains.
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
  std::filesystem::path folder{};  ///< <logging_dir>/<project>, which is there; empty where no logging_dir was given
  Place place{};
};

/// A destination for logged values. User-defined trackers derive from it and are passed to log_with.
///
/// An exception is logged once and training continues; only start() may stop the program, before training begins.
/// Thread safety: calls come from the logging threads, one at a time for each Accelerator.
class Tracker {
 public:
  virtual ~Tracker() = default;

  /// By which get_tracker() finds it.
  [[nodiscard]] virtual std::string name() const = 0;
  /// It writes into Run::folder: without a logging_dir it is refused.
  [[nodiscard]] virtual bool requires_logging_directory() const { return false; }
  /// False: it runs on every rank, not on the main process alone.
  [[nodiscard]] virtual bool main_process_only() const { return true; }

  /// A run begins: init_trackers() was called.
  virtual void start(const Run&) {}
  /// What init_trackers() was given as config.
  virtual void store_init_configuration(const Values&) {}
  /// As log() was given them: a Value may be a group (see flattened()).
  virtual void log(const Values& values, Step step) = 0;
  /// What a tracker has no place for it leaves out.
  virtual void log_text(const std::string& /*name*/, const std::string& /*text*/, Step) {}
  virtual void log_images(const std::string& /*name*/, const std::vector<Image>&, Step) {}
  virtual void log_histogram(const std::string& /*name*/, const Histogram&, Step) {}
  /// The run is over: end_training() was called, or the Accelerator is gone.
  virtual void finish() {}
};

}  // namespace accelerate::tracking
