// SPDX-License-Identifier: Apache-2.0
// The part of the facade that tracks experiments.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "accelerate/tracking/tensors/convert.hpp"
#include "accelerate/tracking/trackers.hpp"

namespace accelerate {

using tracking::Tracker;

/// The trackers in AcceleratorOptions::log_with, and their current run. Not thread-safe.
class TrackingFacade {
 public:
  /// Starts a run of the trackers in log_with, in the folder <logging_dir>/<project_name>, and ends the previous run.
  /// Only the main process writes, unless a user-defined tracker runs on every rank. Every rank may call all functions
  /// of this class.
  ///
  /// \param config  Configuration of the run: {{"lr", 1e-3}, {"net", "basic"}}.
  /// \throws Error (usage) if project_name is not a valid folder name, Error (io) if the folder is not writable.
  void init_trackers(const std::string& project_name, const tracking::Values& config = {}) {
    trackers_.start(project_name, config);
  }
  /// Logs numbers, texts, one-element tensors (the host waits for their device), and groups of numbers: {{"loss",
  /// loss}, {"epoch", 3}}. If a tracker throws, the error is logged once and the program continues.
  void log(const tracking::Values& values, tracking::Step step = {}) { trackers_.log(values, step); }
  /// Logs a text. A tracker without texts ignores it, as it ignores images and histograms.
  void log_text(const std::string& name, const std::string& text, tracking::Step step = {}) {
    trackers_.log_text(name, text, step);
  }
  /// \param images  [N, C, H, W], [C, H, W] or [H, W], with C from 1 to 4; bytes, or floating-point values from 0 to 1.
  void log_images(const std::string& name, const at::Tensor& images, tracking::Step step = {}) {
    tracking::log_images(trackers_, name, images, step, place_);
  }
  /// \param values  Any shape and dtype of numbers. The host waits for their device.
  void log_histogram(const std::string& name, const at::Tensor& values, tracking::Step step = {}) {
    tracking::log_histogram(trackers_, name, values, step);
  }
  /// Returns a tracker of log_with. On ranks where that tracker does not run, the returned tracker drops all values.
  /// \throws Error (usage) with the available names.
  [[nodiscard]] std::shared_ptr<Tracker> get_tracker(std::string_view name) const { return trackers_.get(name); }
  /// Ends the run. The destructor of the Accelerator does the same.
  void end_training() { trackers_.finish(); }

 protected:
  // Movable only as a part of an Accelerator, to prevent slicing.
  TrackingFacade(const TrackingFacade&) = delete;
  TrackingFacade& operator=(const TrackingFacade&) = delete;
  TrackingFacade(TrackingFacade&&) = default;
  TrackingFacade& operator=(TrackingFacade&&) = default;
  ~TrackingFacade() = default;

  TrackingFacade(const tracking::TrackingOptions& options, const RankContext& place)
      : trackers_(options, place), place_(place) {}

 private:
  tracking::Trackers trackers_;
  RankContext place_;
};

}  // namespace accelerate
