// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tracking/report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <system_error>

#include "accelerate/base/error.hpp"
#include "accelerate/tracking/chart.hpp"
#include "accelerate/tracking/meter.hpp"

namespace accelerate::tracking {
namespace {

constexpr std::string_view kHead = R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"/><meta name="viewport" content="width=device-width"/><title>Training report</title><style>
:root { color-scheme: light dark; --ink: #1d2430; --soft: #667; --line: #1f6feb; --grid: #e3e6ea; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa4b2; --line: #6cb6ff; --grid: #2c333d; --paper: #12161c; } }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1120px; padding: 0 1rem; color: var(--ink); background: var(--paper); }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } h3 { font-size: 1rem; margin: 0 0 .3rem; font-weight: 600; }
p.note { color: var(--soft); }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; } th, td { text-align: left; padding: .15rem 1rem .15rem 0; border-bottom: 1px solid var(--grid); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(340px, 1fr)); gap: 1.5rem; } .charts > div { max-width: 560px; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: var(--soft); }
polyline { fill: none; stroke: currentColor; stroke-width: 1.6; stroke-linejoin: round; } circle, g text { fill: currentColor; } .grid { stroke: var(--grid); }
.line0 { color: var(--line); } .line1 { color: #d9730d; } .line2 { color: #2da44e; } .line3 { color: #a371f7; } .line4 { color: #cf222e; } .line5 { color: #8c6d1f; }
.bar { display: flex; width: 160px; height: .8rem; background: var(--grid); } .data { background: #d9730d; } .wire { background: #a371f7; }
.key { display: inline-block; width: .8rem; height: .8rem; vertical-align: -1px; } .wide { overflow-x: auto; }
pre { white-space: pre-wrap; margin: 0; font: inherit; }
</style></head><body>
<h1>Training report</h1>
)";

std::string pairs_table(const std::vector<std::pair<std::string, std::string>>& pairs) {
  std::string rows;
  for (const auto& [name, value] : pairs) {
    rows += fmt::format("<tr><th>{}</th><td><pre>{}</pre></td></tr>\n", html_text(name), html_text(value));
  }
  return "<table>\n" + rows + "</table>\n";
}

std::string numbers_row(const Series& series) {
  std::string cells = fmt::format("<th>{}</th>", html_text(series.name));
  const auto& points = series.points;
  if (points.empty()) return "<tr>" + cells + "<td class=\"number\" colspan=\"4\">no finite value</td></tr>\n";
  const auto [low, high] =
      std::minmax_element(points.begin(), points.end(), [](const auto& a, const auto& b) { return a.value < b.value; });
  for (const double number : {points.front().value, low->value, high->value, points.back().value}) {
    cells += fmt::format("<td class=\"number\">{}</td>", html_text(number_text(number, series.name)));
  }
  return "<tr>" + cells + fmt::format("<td class=\"number\">{}</td></tr>\n", points.size() + series.not_finite);
}

std::string not_finite_note(const RunLog& run) {
  std::string note;
  for (const auto& series : run.series) {
    if (series.not_finite == 0) continue;
    note += fmt::format("<p class=\"note\">{}: {} values were NaN or infinite and are not drawn.</p>\n",
                        html_text(series.name), series.not_finite);
  }
  return note;
}

/// Returns all series except "time", and the throughput computed from it.
std::vector<Series> drawn_series(const RunLog& run) {
  std::vector<Series> drawn;
  for (const auto& series : run.series) {
    if (series.name != "time") drawn.push_back(series);
  }
  for (const auto& series : run.series) {
    if (series.name != "time") continue;
    if (auto rates = throughput_of(series); !rates.points.empty()) drawn.push_back(std::move(rates));
  }
  return drawn;
}

std::string run_html(const RunLog& run, const std::string& title) {
  const auto drawn = drawn_series(run);
  std::string html = fmt::format("<h2>{}</h2>\n<p class=\"note\">{} lines in {}</p>\n", html_text(title), run.lines,
                                 interval_text(run.end_time - run.begin_time));
  if (!run.config.empty()) html += pairs_table(run.config);
  html += "<div class=\"charts\">\n";
  for (const auto& series : drawn) {
    html += fmt::format("<div><h3>{}</h3>{}</div>\n", html_text(series.name), chart_svg(series));
  }
  html += "</div>\n" + not_finite_note(run);
  if (!drawn.empty()) {
    html +=
        "<table>\n<tr><th>number</th><th class=\"number\">first</th><th class=\"number\">lowest</th>"
        "<th class=\"number\">highest</th><th class=\"number\">last</th><th class=\"number\">values</th></tr>\n";
    for (const auto& series : drawn) html += numbers_row(series);
    html += "</table>\n";
  }
  if (!run.texts.empty()) html += pairs_table(run.texts);
  return html;
}

std::string file_html(const LoggedFile& file) {
  std::string html;
  for (size_t i = 0; i < file.logs.runs.size(); ++i) {
    const auto& run = file.logs.runs[i];
    std::string title = file.name.empty() ? run.project : file.name;
    if (title.empty()) title = "a run";
    if (file.logs.runs.size() > 1) title += fmt::format(", run {} of {}", i + 1, file.logs.runs.size());
    html += run_html(run, title);
  }
  if (file.logs.unreadable_lines > 0) {
    html += fmt::format("<p class=\"note\">{} lines of {}metrics.jsonl are not JSON and were skipped.</p>\n",
                        file.logs.unreadable_lines, file.name.empty() ? "" : html_text(file.name) + "/");
  }
  return html;
}

/// \param place  Folder of the file, relative to the requested folder.
void add_file(LoggedFolder& logged, const std::filesystem::path& path, const std::string& place) {
  const std::string name = place == "." ? "" : place;
  const bool is_profile = path.filename() == "profile_summary.json";
  if (!is_profile && path.filename() != "metrics.jsonl") return;
  std::ifstream in(path, std::ios::binary);
  if (!in.is_open()) {
    const std::string reason = std::generic_category().message(errno), file = path.filename().string();
    logged.unreadable_files.push_back(
        fmt::format("{}{}{} cannot be read: {}", name, name.empty() ? "" : "/", file, reason));
    return;
  }
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!is_profile) {
    logged.files.push_back({.name = name, .logs = parse_run_logs(text)});
  } else if (auto ranks = parse_run_profile(text)) {
    logged.profiles.push_back({.name = name, .ranks = *std::move(ranks)});
  } else {
    logged.unreadable_profiles.push_back(name.empty() ? "profile_summary.json" : name + "/profile_summary.json");
  }
}

}  // namespace

LoggedFolder read_logged_folder(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  LoggedFolder logged;
  std::error_code failed;
  for (auto at = fs::recursive_directory_iterator(folder, fs::directory_options::skip_permission_denied, failed);
       !failed && at != fs::recursive_directory_iterator(); at.increment(failed)) {
    std::error_code unknown;
    if (at->is_directory(unknown)) continue;
    add_file(logged, at->path(), at->path().parent_path().lexically_relative(folder).string());
  }
  if (failed) base::fail(ErrorKind::io, {}, "report", "{} cannot be read: {}", folder.string(), failed.message());
  if (logged.files.empty() && logged.profiles.empty() && !logged.unreadable_files.empty()) {
    base::fail(ErrorKind::io, {}, "report", "no log in {} can be read: {}", folder.string(),
               fmt::join(logged.unreadable_files, "; "));
  }
  if (logged.files.empty() && logged.profiles.empty()) {
    base::fail(ErrorKind::data, {}, "report",
               "no metrics.jsonl and no profile_summary.json is in {} or below; runs with log_with = {{\"jsonl\"}} "
               "write the one, profile() with an output_trace_dir the other",
               folder.string());
  }
  const auto by_name = [](const auto& a, const auto& b) { return a.name < b.name; };
  std::sort(logged.files.begin(), logged.files.end(), by_name);
  std::sort(logged.profiles.begin(), logged.profiles.end(), by_name);
  return logged;
}

std::string report_html(const LoggedFolder& folder) {
  std::string html(kHead);
  for (const auto& file : folder.files) html += file_html(file);
  for (const auto& profile : folder.profiles) {
    html += profile_html(profile.ranks, profile.name.empty() ? "Profile" : "Profile in " + profile.name);
  }
  for (const auto& name : folder.unreadable_profiles) {
    html +=
        fmt::format("<p class=\"note\">{} is not a profile of this library and was skipped.</p>\n", html_text(name));
  }
  for (const auto& text : folder.unreadable_files) {
    html += fmt::format("<p class=\"note\">{}; it was left out.</p>\n", html_text(text));
  }
  return html + "</body></html>\n";
}

}  // namespace accelerate::tracking
