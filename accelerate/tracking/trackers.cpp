// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tracking/trackers.hpp"

#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <system_error>

#include "accelerate/base/exception_text.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/tracking/tracker_table.hpp"

namespace accelerate::tracking {
namespace {

/// Result of get() on ranks where a tracker does not run.
class NullTracker final : public Tracker {
 public:
  explicit NullTracker(std::string name) : name_(std::move(name)) {}
  [[nodiscard]] std::string name() const override { return name_; }
  void log(const Values&, Step) override {}

 private:
  std::string name_;
};

std::vector<std::string> names_of(const std::vector<std::shared_ptr<Tracker>>& trackers) {
  std::vector<std::string> names;
  for (const auto& tracker : trackers) names.push_back(tracker->name());
  return names;
}

std::vector<std::shared_ptr<Tracker>> made_of(const LogWith& with, const RankContext& place) {
  if (with.tracker()) return {with.tracker()};
  if (with.name() == "all") {
    std::vector<std::shared_ptr<Tracker>> all;
    for (const auto& name : tracker_names()) all.push_back(make_tracker(name));
    return all;
  }
  if (auto one = make_tracker(with.name())) return {std::move(one)};
  if (with.name().empty()) base::fail(ErrorKind::usage, place, "log_with", "a tracker is null, must be an object");
  base::fail(ErrorKind::usage, place, "log_with",
             "there is no tracker '{}'; available: {}, all; pass a user-defined tracker as a shared_ptr", with.name(),
             fmt::join(tracker_names(), ", "));
}

}  // namespace

Trackers::Trackers(const TrackingOptions& options, const RankContext& place)
    : logging_dir_(options.logging_dir), place_(place) {
  for (const auto& with : options.log_with) {
    for (auto& tracker : made_of(with, place)) {
      const auto names = names_of(all_);
      if (std::find(names.begin(), names.end(), tracker->name()) != names.end()) {
        if (with.tracker() == nullptr) continue;  // requested twice by name
        base::fail(ErrorKind::usage, place, "log_with", "two trackers are called '{}', names must be unique",
                   tracker->name());
      }
      if (tracker->requires_logging_directory() && !logging_dir_) {
        base::fail(ErrorKind::usage, place, "log_with",
                   "'{}' writes files, but logging_dir is not set; set it to a folder", tracker->name());
      }
      if (place.rank == 0 || !tracker->main_process_only()) here_.push_back(tracker);
      all_.push_back(std::move(tracker));
    }
  }
}

Trackers::~Trackers() { finish(); }

Trackers& Trackers::operator=(Trackers&& other) noexcept {
  finish();
  logging_dir_ = std::move(other.logging_dir_);
  place_ = std::move(other.place_);
  all_ = std::move(other.all_);
  here_ = std::move(other.here_);
  in_run_ = std::exchange(other.in_run_, false);
  failed_ = std::move(other.failed_);
  return *this;
}

std::filesystem::path Trackers::make_folder(const std::string& project) const {
  std::filesystem::path folder = std::filesystem::path(*logging_dir_) / project;
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) {
    base::fail(ErrorKind::io, place_, "init_trackers", "{} cannot be made: {}; choose another logging_dir",
               folder.string(), failed.message());
  }
  return folder;
}

void Trackers::start(const std::string& project, const Values& config) {
  // The project name becomes a folder name.
  if (project.empty() || project == "." || project == ".." || project.find('/') != std::string::npos ||
      project.find('\0') != std::string::npos) {
    base::fail(ErrorKind::usage, place_, "init_trackers",
               "the project is called '{}', must be a name for a folder: not empty, without '/'", project);
  }
  finish();
  failed_.clear();
  if (here_.empty()) return;
  const Run run{.project = project, .folder = logging_dir_ ? make_folder(project) : "", .place = place_};
  for (auto tracker = here_.begin(); tracker != here_.end(); ++tracker) {
    try {
      (*tracker)->start(run);
    } catch (...) {  // the run has not begun, so the started trackers must be ended here
      std::for_each(here_.begin(), tracker,
                    [&](const auto& begun) { one(*begun, "finish", [](Tracker& its) { its.finish(); }); });
      throw;
    }
  }
  in_run_ = true;
  each("store_init_configuration", [&](Tracker& tracker) { tracker.store_init_configuration(config); });
}

void Trackers::log(const Values& values, Step step) {
  if (!in_run_ && !here_.empty()) {
    base::log_once(base::LogLevel::warning, place_,
                   "log: no run has begun, so the values are dropped; call init_trackers()");
  }
  each("log", [&](Tracker& tracker) { tracker.log(values, step); });
}

void Trackers::log_text(const std::string& name, const std::string& text, Step step) {
  each("log_text", [&](Tracker& tracker) { tracker.log_text(name, text, step); });
}

void Trackers::log_images(const std::string& name, const std::vector<Image>& images, Step step) {
  each("log_images", [&](Tracker& tracker) { tracker.log_images(name, images, step); });
}

void Trackers::log_histogram(const std::string& name, const Histogram& histogram, Step step) {
  each("log_histogram", [&](Tracker& tracker) { tracker.log_histogram(name, histogram, step); });
}

void Trackers::finish() noexcept {
  each("finish", [](Tracker& tracker) { tracker.finish(); });
  in_run_ = false;
}

void Trackers::each(std::string_view what, const std::function<void(Tracker&)>& call) noexcept {
  if (!in_run_) return;
  for (const auto& tracker : here_) one(*tracker, what, call);
}

void Trackers::one(Tracker& tracker, std::string_view what, const std::function<void(Tracker&)>& call) noexcept {
  try {
    call(tracker);
  } catch (...) {
    log_failure(tracker, what, base::exception_summary(std::current_exception()));
  }
}

void Trackers::log_failure(const Tracker& tracker, std::string_view what, std::string_view reason) noexcept {
  try {
    const std::string name = tracker.name();
    if (!failed_.insert(name).second) return;
    base::log(base::LogLevel::warning, place_,
              "tracker {}: {}: {}; training continues, and further failures of this tracker are not logged", name, what,
              reason);
  } catch (...) {  // its name, or the program's log handler
  }
}

std::shared_ptr<Tracker> Trackers::get(std::string_view name) const {
  for (const auto& tracker : all_) {
    if (tracker->name() != name) continue;
    const bool runs = std::find(here_.begin(), here_.end(), tracker) != here_.end();
    return runs ? tracker : std::make_shared<NullTracker>(std::string(name));
  }
  base::fail(ErrorKind::usage, place_, "get_tracker", "there is no tracker '{}', log_with has: {}", name,
             all_.empty() ? "none" : fmt::format("{}", fmt::join(names_of(all_), ", ")));
}

}  // namespace accelerate::tracking
