// SPDX-License-Identifier: Apache-2.0
// The trackers of one Accelerator.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/tracking/tracker.hpp"

namespace accelerate::tracking {

/// An entry of log_with: the name of a tracker of the library, "all", or a user-defined tracker.
class LogWith {
 public:
  LogWith(const char* name) : name_(name) {}
  LogWith(std::string name) : name_(std::move(name)) {}
  template <std::derived_from<Tracker> Own>
  LogWith(std::shared_ptr<Own> tracker) : tracker_(std::move(tracker)) {}

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::shared_ptr<Tracker>& tracker() const { return tracker_; }

 private:
  std::string name_;
  std::shared_ptr<Tracker> tracker_;
};

struct TrackingOptions {
  std::vector<LogWith> log_with{};
  std::optional<std::string> logging_dir{};
};

/// Passes logged values to every tracker of this rank. After a run has begun, a tracker that throws is logged once and
/// does not stop the program.
class Trackers {
 public:
  /// Has no trackers: logged values are dropped.
  Trackers() = default;
  /// Nothing is written before start().
  /// \throws Error (usage), on every rank, for an unknown tracker name, a null pointer, two trackers with the same
  ///   name, and a tracker that needs a logging_dir if none is given.
  Trackers(const TrackingOptions& options, const RankContext& place);
  ~Trackers();
  Trackers(Trackers&&) noexcept = default;
  Trackers& operator=(Trackers&& other) noexcept;

  /// Starts a run and ends the previous one.
  /// \throws Error (usage) if the project is not a valid folder name, Error (io) if the folder is not writable, and the
  ///   exceptions of a tracker's start().
  void start(const std::string& project, const Values& config);
  void log(const Values& values, Step step);
  void log_text(const std::string& name, const std::string& text, Step step);
  void log_images(const std::string& name, const std::vector<Image>& images, Step step);
  void log_histogram(const std::string& name, const Histogram& histogram, Step step);
  /// Ends the run. Never throws.
  void finish() noexcept;

  /// Returns the tracker. On ranks other than the main process, a main-process tracker is replaced by one that drops
  /// all values.
  /// \throws Error (usage) with the available names.
  [[nodiscard]] std::shared_ptr<Tracker> get(std::string_view name) const;
  /// True if a tracker of this rank is in a run. Expensive values need to be computed only then.
  [[nodiscard]] bool in_run() const { return in_run_ && !here_.empty(); }

 private:
  void each(std::string_view what, const std::function<void(Tracker&)>& call) noexcept;
  void one(Tracker& tracker, std::string_view what, const std::function<void(Tracker&)>& call) noexcept;
  void log_failure(const Tracker& tracker, std::string_view what, std::string_view reason) noexcept;
  [[nodiscard]] std::filesystem::path make_folder(const std::string& project) const;

  std::optional<std::string> logging_dir_;
  RankContext place_;
  std::vector<std::shared_ptr<Tracker>> all_, here_;  // here_: those that run on this rank
  bool in_run_ = false;
  std::set<std::string, std::less<>> failed_;
};

}  // namespace accelerate::tracking
