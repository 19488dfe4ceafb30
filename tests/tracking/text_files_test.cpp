// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <csignal>
#include <limits>
#include <nlohmann/json.hpp>

#include "accelerate/tracking/append_file.hpp"
#include "accelerate/tracking/trackers.hpp"
#include "tests/temporary_folder.hpp"

using namespace accelerate::tracking;
using testing::lines_of;
using testing::text_of;
using Lines = std::vector<std::string>;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A run in <folder>/digits.
Trackers run_in(const std::filesystem::path& folder, const char* tracker, const Values& config = {}) {
  Trackers trackers({.log_with = {tracker}, .logging_dir = folder}, {});
  trackers.start("digits", config);
  return trackers;
}

/// The rows without their second cell, the time.
Lines timeless(Lines rows) {
  for (auto& row : rows) {
    const auto first = row.find(',');
    if (first == std::string::npos) continue;
    row.erase(first, row.find(',', first + 1) - first);
  }
  return rows;
}

/// During its lifetime no file of this process can grow beyond this size in bytes.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

}  // namespace

TEST_CASE("metrics.jsonl: the configuration, then one line per log() in order") {
  const testing::TemporaryFolder folder;
  auto run = run_in(folder.path, "jsonl", {{"lr", 0.1}, {"net", "basic"}, {"layers", 2}, {"fast", false}});
  run.log({{"loss", 0.25}, {"images", 64}, {"note", "tab\t\"quoted\"\n"}}, 3);
  run.log({{"loss", Value::Group{{"test", 2.5}, {"train", 1e-300}}}, {"best", true}}, std::nullopt);
  run.log_text("sample", "a cat", 4);
  const auto lines = lines_of(folder.path / "digits" / "metrics.jsonl");
  REQUIRE(lines.size() == 4);
  auto rows = std::vector<nlohmann::ordered_json>();
  for (const auto& line : lines) rows.push_back(nlohmann::ordered_json::parse(line));
  for (auto& row : rows) {
    CHECK(row["time"].get<double>() > 1.5e9);
    row.erase("time");
  }
  CHECK(rows[0].dump() == R"({"project":"digits","config":{"lr":0.1,"net":"basic","layers":2,"fast":false}})");
  CHECK(rows[1].dump() == R"({"step":3,"loss":0.25,"images":64,"note":"tab\t\"quoted\"\n"})");
  CHECK(rows[2].dump() == R"({"loss/test":2.5,"loss/train":1e-300,"best":true})");
  CHECK(rows[3].dump() == R"({"step":4,"sample":"a cat"})");
}

TEST_CASE("metrics.jsonl stays JSON for NaN, invalid UTF-8, and the program's own step and time") {
  const testing::TemporaryFolder folder;
  auto run = run_in(folder.path, "jsonl");
  run.log({{"a", std::nan("")}, {"b", kInfinity}, {"c", -kInfinity}, {"\xff", "\xc3("}}, 1);
  run.log({{"step", 17}, {"time", "noon"}}, 2);
  const auto lines = lines_of(folder.path / "digits" / "metrics.jsonl");
  REQUIRE(lines.size() == 3);
  auto odd = nlohmann::json::parse(lines[1]);
  CHECK(odd["a"] == "NaN");
  CHECK(odd["b"] == "Infinity");
  CHECK(odd["c"] == "-Infinity");
  CHECK(odd["\xef\xbf\xbd"] == "\xef\xbf\xbd(");
  CHECK(lines[2] == R"({"step":17,"time":"noon"})");
}

TEST_CASE("metrics.csv: one column per name in the order of their first values") {
  const testing::TemporaryFolder folder;
  auto run = run_in(folder.path, "csv", {{"lr", 0.1}});
  run.log({{"loss", 0.25}, {"lr", 0.1}}, 1);
  run.log({{"loss", 0.125}}, 2);
  run.log({{"accuracy", Value::Group{{"test", 0.5}}}, {"a,b", "x \"y\"\nz"}}, 2);
  run.log({{"loss", std::nan("")}, {"lr", kInfinity}, {"step", 9}}, 3);
  CHECK(timeless(lines_of(folder.path / "digits" / "metrics.csv")) ==
        Lines{"step,loss,lr,accuracy/test,\"a,b\"", "1,0.25,0.1", "2,0.125,", "2,,,0.5,\"x \"\"y\"\"", "z\"",
              "9,nan,inf,,"});
}

TEST_CASE("metrics.csv: invalid UTF-8 is replaced in names and values, with the same column in the next run") {
  const testing::TemporaryFolder folder;
  for (const int step : {1, 2}) run_in(folder.path, "csv").log({{"bad\xff", "\xc3("}, {"\xc3\xbc", "\xc3\xa4"}}, step);
  CHECK(timeless(lines_of(folder.path / "digits" / "metrics.csv")) ==
        Lines{"step,bad\xef\xbf\xbd,\xc3\xbc", "1,\xef\xbf\xbd(,\xc3\xa4", "2,\xef\xbf\xbd(,\xc3\xa4"});
}

TEST_CASE("a run that continues in a folder appends to its files, and completes a truncated line") {
  const testing::TemporaryFolder folder;
  for (const char* tracker : {"csv", "jsonl"}) {
    const auto file = folder.path / "digits" / ("metrics." + std::string(tracker));
    run_in(folder.path, tracker).log({{"loss", 1}, {"a,\"b\"", 2}}, 1);
    std::ofstream(file, std::ios::app) << "cut he";
    run_in(folder.path, tracker).log({{"lr", 3}, {"loss", 4}}, 2);
  }
  CHECK(timeless(lines_of(folder.path / "digits" / "metrics.csv")) ==
        Lines{R"(step,loss,"a,""b""",lr)", "1,1,2", "cut he", "2,4,,3"});
  const auto lines = lines_of(folder.path / "digits" / "metrics.jsonl");
  REQUIRE(lines.size() == 5);
  CHECK(lines[2] == "cut he");
  CHECK(nlohmann::json::parse(lines[4])["lr"] == 3);
}

TEST_CASE("on a full disk no partial line is written, and later lines are kept") {
  const testing::TemporaryFolder folder;
  const auto path = folder.path / "log";
  AppendFile file(path);
  file.append("first\n");
  std::string message;
  {
    const FullDisk limit(10);
    try {
      file.append("second, too long\n");
    } catch (const accelerate::Error& error) {
      message = error.what();
    }
  }
  CHECK(message == "tracking: " + path.string() + " cannot be written: File too large");
  file.append("third\n");
  CHECK(text_of(path) == "first\nthird\n");
  {
    const FullDisk limit(10);
    CHECK_THROWS_WITH(file.replace("all of it, and more"),
                      ("tracking: " + path.string() + " cannot be rewritten: File too large").c_str());
  }
  CHECK(text_of(path) == "first\nthird\n");
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 1);
}
