// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tracking/report.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>

#include "accelerate/base/error.hpp"
#include "accelerate/tracking/chart.hpp"
#include "tests/temporary_folder.hpp"

using namespace accelerate::tracking;

namespace {

const char* const two_runs = R"({"project":"digits","time":1000.0,"config":{"lr":0.1,"net":"basic","fast":true}}
{"step":1,"time":1001.0,"loss":2.0,"sample":"a <b> & \"c\""}
{"step":3,"time":1002.0,"loss":"NaN","lr":0.1}
{"step":5,"time":1004.0,"loss":1.0,"lr":0.05,"sample":"later"}

{"cut
{"project":"digits","time":2000.0,"config":{}}
{"time":2001.0,"x_bytes":1048576}
{"time":2002.0,"x_bytes":3145728,"best":true}
)";

const Series& series_of(const RunLog& run, const std::string& name) {
  const auto found = std::find_if(run.series.begin(), run.series.end(), [&](const auto& s) { return s.name == name; });
  REQUIRE(found != run.series.end());
  return *found;
}

std::string refusal(const std::filesystem::path& folder) {
  try {
    (void)read_logged_folder(folder);
  } catch (const accelerate::Error& error) {
    return std::string(error_kind_name(error.kind())) + ": " + error.what();
  }
  return "";
}

size_t count_of(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("a log is parsed into runs with series and texts, and invalid lines are counted") {
  const auto logs = parse_run_logs(two_runs);
  CHECK(logs.unreadable_lines == 1);
  REQUIRE(logs.runs.size() == 2);
  const auto& first = logs.runs[0];
  CHECK(first.project == "digits");
  CHECK(first.lines == 3);
  CHECK(first.config ==
        std::vector<std::pair<std::string, std::string>>{{"lr", "0.1"}, {"net", "basic"}, {"fast", "true"}});
  CHECK(first.texts == std::vector<std::pair<std::string, std::string>>{{"sample", "later"}});
  const auto& loss = series_of(first, "loss");
  REQUIRE(loss.points.size() == 2);
  CHECK(loss.points[1].step == 5);
  CHECK(loss.points[1].value == 1.0);
  CHECK(loss.not_finite == 1);
  CHECK(first.begin_time == 1000.0);
  CHECK(first.end_time == 1004.0);
  const auto& bytes = series_of(logs.runs[1], "x_bytes");  // values without steps are counted
  CHECK(bytes.points[0].step == 0);
  CHECK(bytes.points[1].step == 1);
  CHECK(series_of(logs.runs[1], "best").points[0].value == 1.0);
}

TEST_CASE("foreign content in a log is ignored") {
  CHECK(parse_run_logs("").runs.empty());
  CHECK(parse_run_logs("\n \r\n").unreadable_lines == 0);
  CHECK(parse_run_logs("[]\n3\nnull\n\"x\"").unreadable_lines == 4);
  const auto odd = parse_run_logs(R"({"step":"x","time":"noon","config":7,"a":{"b":[1]},"c":null})");
  REQUIRE(odd.runs.size() == 1);
  CHECK(odd.runs[0].texts ==
        std::vector<std::pair<std::string, std::string>>{{"time", "noon"}, {"a", R"({"b":[1]})"}, {"c", "null"}});
  CHECK(series_of(odd.runs[0], "config").points[0].value == 7);
}

TEST_CASE("throughput is steps per time between lines") {
  const auto logs = parse_run_logs(two_runs);
  const auto rates = throughput_of(series_of(logs.runs[0], "time"));
  REQUIRE(rates.points.size() == 2);
  CHECK(rates.points[0].value == 2.0);  // steps 1 to 3 in a second
  CHECK(rates.points[1].value == 1.0);
  Series many;
  for (int step = 0; step < 100000; ++step) many.points.push_back({1.0 * step, 0.5 * step});
  CHECK(throughput_of(many).points.size() <= 101);
  CHECK(throughput_of(Series()).points.empty());
}

TEST_CASE("a curve of many points keeps its peaks") {
  std::vector<Point> points;
  for (int i = 0; i < 100000; ++i) points.push_back({1.0 * i, i == 54321 ? 9.0 : i == 12345 ? -9.0 : 0.0});
  const auto few = thinned(points, 1000);
  CHECK(few.size() <= 1000);
  const auto has = [&](double value) {
    return std::any_of(few.begin(), few.end(), [&](const Point& point) { return point.value == value; });
  };
  CHECK(has(9.0));
  CHECK(has(-9.0));
  CHECK(std::is_sorted(few.begin(), few.end(), [](const Point& a, const Point& b) { return a.step < b.step; }));
}

TEST_CASE("ticks are round numbers within the range") {
  CHECK(round_ticks(0, 10) == std::vector<double>{0, 2, 4, 6, 8, 10});
  CHECK(round_ticks(3, 3) == std::vector<double>{3});
  CHECK(round_ticks(0, 1e-310).size() >= 2);
  CHECK(round_ticks(-1e308, 1e308).size() >= 2);
}

TEST_CASE("a page contains every run with its curves and numbers, and escapes HTML") {
  const std::string page = report_html({.files = {{.name = "<script>", .logs = parse_run_logs(two_runs)}}});
  CHECK(page.find("<script") == std::string::npos);
  CHECK(page.find("&lt;script&gt;, run 1 of 2") != std::string::npos);
  CHECK(count_of(page, "<svg ") == 6);  // loss, lr, throughput; x_bytes, best, throughput
  CHECK(page.find("<th>loss</th><td class=\"number\">2</td><td class=\"number\">1</td><td class=\"number\">2</td>"
                  "<td class=\"number\">1</td><td class=\"number\">3</td>") != std::string::npos);
  CHECK(page.find("loss: 1 values were NaN or infinite and are not drawn.") != std::string::npos);
  CHECK(page.find("3.0 MiB") != std::string::npos);
  CHECK(page.find("1 lines of &lt;script&gt;/metrics.jsonl are not JSON and were skipped.") != std::string::npos);
  CHECK(page.find("http") == std::string::npos);  // nothing is fetched
}

TEST_CASE("values that are never finite, and infinite steps, still produce a page") {
  const std::string page = report_html(
      {.files = {{.logs = parse_run_logs("{\"a\":\"NaN\",\"step\":\"Infinity\"}\n{\"b\":1e308}\n{\"b\":-1e308}\n")}}});
  CHECK(count_of(page, "no finite value") == 2);  // in the curve and in the table
  for (const char* number : {">inf", ">-inf", ">nan", ",inf", ",-inf", ",nan", "\"inf", "\"-inf", "\"nan"}) {
    CAPTURE(number);
    CHECK(page.find(number) == std::string::npos);
  }
}

TEST_CASE("an unreadable log is reported in the page, and is an error if there is no other") {
  const testing::TemporaryFolder folder;
  std::filesystem::create_symlink("/nowhere/metrics.jsonl", folder.path / "metrics.jsonl");
  std::filesystem::create_directories(folder.path / "b" / "metrics.jsonl");
  CHECK(refusal(folder.path) == "io: report: no log in " + folder.path.string() +
                                    " can be read: metrics.jsonl cannot be read: No such file or directory");
  std::filesystem::create_directories(folder.path / "c");
  std::ofstream(folder.path / "c" / "metrics.jsonl") << two_runs;
  const auto logged = read_logged_folder(folder.path);
  REQUIRE(logged.files.size() == 1);
  CHECK(logged.files[0].name == "c");
  const std::string page = report_html(logged);
  CHECK(page.find("<p class=\"note\">metrics.jsonl cannot be read: No such file or directory; it was left out.</p>") !=
        std::string::npos);
}

TEST_CASE("every metrics.jsonl below a folder is found; none, or no folder, is an error") {
  const testing::TemporaryFolder folder;
  CHECK(refusal(folder.path) == "data: report: no metrics.jsonl and no profile_summary.json is in " +
                                    folder.path.string() +
                                    " or below; runs with log_with = {\"jsonl\"} write the one, profile() with an "
                                    "output_trace_dir the other");
  CHECK(refusal(folder.path / "none") ==
        "io: report: " + (folder / "none") + " cannot be read: No such file or directory");
  std::filesystem::create_directories(folder.path / "b" / "deep");
  for (const auto& place : {folder.path, folder.path / "b" / "deep"}) {
    std::ofstream(place / "metrics.jsonl") << two_runs;
  }
  std::ofstream(folder.path / "b" / "profile_summary.json") << R"({"ranks":[]})";
  std::ofstream(folder.path / "profile_summary.json") << "{";
  const auto logged = read_logged_folder(folder.path);
  REQUIRE(logged.files.size() == 2);
  CHECK(logged.files[0].name.empty());
  CHECK(logged.files[1].name == "b/deep");
  REQUIRE(logged.profiles.size() == 1);
  CHECK(logged.profiles[0].name == "b");
  CHECK(logged.unreadable_profiles == std::vector<std::string>{"profile_summary.json"});
  const std::string page = report_html(logged);
  CHECK(page.find("<h2>Profile in b</h2>\n<p>No step was recorded.</p>") != std::string::npos);
  CHECK(page.find("profile_summary.json is not a profile of this library and was skipped.") != std::string::npos);
}
