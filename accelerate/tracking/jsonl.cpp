// SPDX-License-Identifier: Apache-2.0
// metrics.jsonl: one line of JSON per call of log(), and one with the configuration at the start of each run.
#include <fmt/format.h>

#include "accelerate/tracking/append_file.hpp"
#include "accelerate/tracking/text.hpp"
#include "accelerate/tracking/tracker_table.hpp"

namespace accelerate::tracking {
namespace {

class JsonLines final : public Tracker {
 public:
  [[nodiscard]] std::string name() const override { return "jsonl"; }
  [[nodiscard]] bool requires_logging_directory() const override { return true; }

  void start(const Run& run) override {
    project_ = run.project;
    file_ = AppendFile(run.folder / "metrics.jsonl");
    if (file_.ends_within_line()) file_.append("\n");
  }

  void store_init_configuration(const Values& config) override {
    std::string members;
    for (const auto& [name, value] : flattened(config)) add(members, name, json_text(value));
    file_.append(fmt::format("{{\"project\":{},\"time\":{:.3f},\"config\":{{{}}}}}\n", json_string(project_),
                             wall_time(), members));
  }

  void log(const Values& values, Step step) override {
    const Values flat = flattened(values);
    const auto given = [&](std::string_view name) {
      for (const auto& value : flat) {
        if (value.first == name) return true;
      }
      return false;
    };
    std::string members;
    if (step && !given("step")) add(members, "step", std::to_string(*step));
    if (!given("time")) add(members, "time", fmt::format("{:.3f}", wall_time()));
    for (const auto& [name, value] : flat) add(members, name, json_text(value));
    file_.append("{" + members + "}\n");
  }

  void log_text(const std::string& name, const std::string& text, Step step) override { log({{name, text}}, step); }

 private:
  static void add(std::string& members, std::string_view name, std::string_view value) {
    if (!members.empty()) members += ',';
    members += json_string(name);
    members += ':';
    members += value;
  }

  std::string project_;
  AppendFile file_;
};

}  // namespace

std::unique_ptr<Tracker> make_jsonl() { return std::make_unique<JsonLines>(); }

}  // namespace accelerate::tracking
