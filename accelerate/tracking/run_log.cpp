// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tracking/run_log.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

namespace accelerate::tracking {
namespace {

using Json = nlohmann::ordered_json;

std::string as_text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// Returns a number, including the strings that represent values without a JSON notation.
std::optional<double> as_number(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (value.is_boolean()) return value.get<bool>() ? 1.0 : 0.0;
  if (value == "NaN" || value == "Infinity" || value == "-Infinity") return std::numeric_limits<double>::quiet_NaN();
  return std::nullopt;
}

template <typename Named, typename Name>
auto found(Named& all, const Name& name) {
  return std::find_if(all.begin(), all.end(), [&](const auto& one) {
    if constexpr (requires { one.name; }) {
      return one.name == name;
    } else {
      return one.first == name;
    }
  });
}

void add_number(RunLog& run, const std::string& name, double step, double value) {
  auto series = found(run.series, name);
  if (series == run.series.end()) series = run.series.insert(series, Series{.name = name});
  if (std::isfinite(value)) {
    series->points.push_back({step, value});
  } else {
    ++series->not_finite;
  }
}

void add_text(RunLog& run, const std::string& name, const std::string& text) {
  auto there = found(run.texts, name);
  if (there == run.texts.end()) {
    run.texts.emplace_back(name, text);
  } else {
    there->second = text;
  }
}

void begin_run(RunLogs& logs, const Json& line) {
  RunLog run;
  if (line.contains("project")) run.project = as_text(line["project"]);
  for (const auto& [name, value] : line["config"].items()) run.config.emplace_back(name, as_text(value));
  run.begin_time = run.end_time = line.contains("time") ? as_number(line["time"]).value_or(0.0) : 0.0;
  logs.runs.push_back(std::move(run));
}

void add_line(RunLog& run, const Json& line, double& step) {
  const auto given = line.contains("step") ? as_number(line["step"]) : std::nullopt;
  step = given && std::isfinite(*given) ? *given : step + 1;
  ++run.lines;
  for (const auto& [name, value] : line.items()) {
    if (name == "step") continue;
    const auto number = as_number(value);
    if (number) {
      add_number(run, name, step, *number);
    } else {
      add_text(run, name, as_text(value));
    }
  }
  if (const auto time = found(run.series, "time"); time != run.series.end() && !time->points.empty()) {
    if (run.begin_time == 0.0) run.begin_time = time->points.front().value;
    run.end_time = std::max(run.end_time, time->points.back().value);
  }
}

}  // namespace

RunLogs parse_run_logs(std::string_view jsonl) {
  RunLogs logs;
  double step = -1;
  while (!jsonl.empty()) {
    const auto end = jsonl.find('\n');
    const auto text = jsonl.substr(0, end);
    jsonl.remove_prefix(end == std::string_view::npos ? jsonl.size() : end + 1);
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!line.is_object()) {
      ++logs.unreadable_lines;
    } else if (line.contains("config") && line["config"].is_object()) {
      begin_run(logs, line);
      step = -1;
    } else {
      if (logs.runs.empty()) logs.runs.emplace_back();
      add_line(logs.runs.back(), line, step);
    }
  }
  return logs;
}

Series throughput_of(const Series& times) {
  Series rates{.name = "steps per second"};
  constexpr size_t pieces = 100;
  const size_t stride = std::max<size_t>(times.points.size() / pieces, 1);
  for (size_t i = stride; i < times.points.size(); i += stride) {
    const auto& before = times.points[i - stride];
    const auto& now = times.points[i];
    const double steps = now.step - before.step, seconds = now.value - before.value;
    if (steps > 0 && seconds > 0) rates.points.push_back({now.step, steps / seconds});
  }
  return rates;
}

}  // namespace accelerate::tracking
