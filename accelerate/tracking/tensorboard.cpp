// SPDX-License-Identifier: Apache-2.0
// events.out.tfevents.* for TensorBoard, one file per run, and hparams.yml with the configuration as text.
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>

#include "accelerate/tracking/append_file.hpp"
#include "accelerate/tracking/event_record.hpp"
#include "accelerate/tracking/events.hpp"
#include "accelerate/tracking/text.hpp"
#include "accelerate/tracking/tracker_table.hpp"

namespace accelerate::tracking {
namespace {

class TensorBoard final : public Tracker {
 public:
  [[nodiscard]] std::string name() const override { return "tensorboard"; }
  [[nodiscard]] bool requires_logging_directory() const override { return true; }

  void start(const Run& run) override {
    static std::atomic<int64_t> files{0};
    if (run.folder != run_.folder) last_step_ = -1;
    run_ = run;
    const double now = wall_time();
    // TensorBoard reads the files of a folder in alphabetical order.
    file_ = AppendFile(run.folder /
                       fmt::format("events.out.tfevents.{:.0f}.{}.{}.{}", now, base::host_name(), getpid(), files++));
    write(version_event(now));
  }

  void store_init_configuration(const Values& config) override {
    const double now = wall_time();
    // TensorBoard uses the folder as session name. The name here groups runs with the same configuration.
    write(summary_event(hparams_summaries(run_.project, config, now), 0, now));
    has_hparams_ = true;
    std::string yaml;
    for (const auto& [name, value] : flattened(config)) yaml += json_string(name) + ": " + json_text(value) + "\n";
    AppendFile(run_.folder / "hparams.yml").replace(yaml);
  }

  void log(const Values& values, Step step) override {
    std::vector<Message> summary;
    for (const auto& [name, value] : flattened(values)) {
      if (const auto number = number_of(value)) {
        summary.push_back(scalar_summary(name, *number));
      } else {
        summary.push_back(text_summary(name, plain_text(value)));
      }
    }
    if (!summary.empty()) write(summary, step);
  }
  void log_text(const std::string& name, const std::string& text, Step step) override {
    write({text_summary(name, text)}, step);
  }
  void log_images(const std::string& name, const std::vector<Image>& images, Step step) override {
    std::vector<Message> summary;
    for (size_t i = 0; i < images.size(); ++i) {
      summary.push_back(image_summary(images.size() == 1 ? name : fmt::format("{}/{}", name, i), images[i]));
    }
    if (!summary.empty()) write(summary, step);
  }
  void log_histogram(const std::string& name, const Histogram& histogram, Step step) override {
    write({histogram_summary(name, histogram)}, step);
  }

  void finish() override {
    const double now = wall_time();
    if (has_hparams_) write(summary_event({hparams_end_summary(now)}, 0, now));
  }

 private:
  void write(const Message& event) { file_.append(event_record(event.wire())); }
  /// If no step is given, the last step plus one is used, because points at the same step would cover each other.
  void write(const std::vector<Message>& summary, Step step) {
    last_step_ = step.value_or(last_step_ + 1);
    write(summary_event(summary, last_step_, wall_time()));
  }

  Run run_;
  AppendFile file_;
  bool has_hparams_ = false;
  int64_t last_step_ = -1;
};

}  // namespace

std::unique_ptr<Tracker> make_tensorboard() { return std::make_unique<TensorBoard>(); }

}  // namespace accelerate::tracking
