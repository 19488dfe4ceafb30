// SPDX-License-Identifier: Apache-2.0
// The facade's part that keeps the numbers of a run.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "accelerate/tracking/tensors/convert.hpp"
#include "accelerate/tracking/trackers.hpp"

namespace accelerate {

using tracking::Tracker;

/// The trackers in AcceleratorOptions::log_with, and the run that they keep.
class TrackedRun {
 public:
  /// Begins a run of the trackers in log_with, in the folder <logging_dir>/<project_name>; one that runs ends. config:
  /// what the run was configured with, {{"lr", 1e-3}, {"net", "basic"}}. What is logged is kept by the main process
  /// alone, unless a tracker of one's own says otherwise; every rank may call all of this.
  /// Throws Error: usage for a name that is not a directory's, io for a folder that cannot be written.
  void init_trackers(const std::string& project_name, const tracking::Values& config = {}) {
    trackers_.start(project_name, config);
  }
  /// {{"loss", loss}, {"epoch", 3}}: numbers, texts, tensors of one element (whose device is waited for) and groups of
  /// numbers. A tracker that fails is named in the log, once, and stops nothing.
  void log(const tracking::Values& values, tracking::Step step = {}) { trackers_.log(values, step); }
  void log_text(const std::string& name, const std::string& text, tracking::Step step = {}) {
    trackers_.log_text(name, text, step);
  }
  /// images   [N, C, H, W], [C, H, W] or [H, W], C of 1 to 4, of bytes or of floating point from 0 to 1
  void log_images(const std::string& name, const at::Tensor& images, tracking::Step step = {}) {
    tracking::log_images(trackers_, name, images, step, place_);
  }
  void log_histogram(const std::string& name, const at::Tensor& values, tracking::Step step = {}) {
    tracking::log_histogram(trackers_, name, values, step);
  }
  /// One of log_with; where it does not run, one that keeps nothing.
  /// Throws Error (usage), naming those there are.
  [[nodiscard]] std::shared_ptr<Tracker> get_tracker(std::string_view name) const { return trackers_.get(name); }
  /// The trackers' run is over. It also is when the Accelerator goes.
  void end_training() { trackers_.finish(); }

 protected:
  // Part of an Accelerator only: a copy, or what was moved out of one, would be half of it.
  TrackedRun(const TrackedRun&) = delete;
  TrackedRun& operator=(const TrackedRun&) = delete;
  TrackedRun(TrackedRun&&) = default;
  TrackedRun& operator=(TrackedRun&&) = default;
  ~TrackedRun() = default;

  TrackedRun(const tracking::TrackingOptions& options, const Place& place) : trackers_(options, place), place_(place) {}

 private:
  tracking::Trackers trackers_;
  Place place_;
};

}  // namespace accelerate
