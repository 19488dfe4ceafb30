// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tracking/trackers.hpp"

#include <doctest/doctest.h>

#include <functional>

#include "accelerate/base/log.hpp"
#include "accelerate/tracking/tracker_table.hpp"
#include "tests/temporary_folder.hpp"

using namespace accelerate::tracking;
namespace base = accelerate::base;
using Lines = std::vector<std::string>;

namespace {

/// Records its calls.
struct Diary : Tracker {
  explicit Diary(std::string called = "diary") : name_(std::move(called)) {}
  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] bool main_process_only() const override { return only_main; }
  void start(const Run& run) override { lines.push_back("start " + run.project + " in '" + run.folder.string() + "'"); }
  void store_init_configuration(const Values& config) override { configs.push_back(config); }
  void log(const Values& values, Step step) override {
    if (failing) throw std::runtime_error("the server is gone\nand more");
    rows.emplace_back(values, step);
  }
  void finish() override { lines.emplace_back("finish"); }

  std::string name_;
  bool only_main = true, failing = false;
  Lines lines;
  std::vector<Values> configs;
  std::vector<std::pair<Values, Step>> rows;
};

/// Collects log lines during its lifetime.
struct LogLines {
  LogLines() {
    base::reset_log_once();
    before = base::set_log_handler([this](base::LogLevel, std::string_view line) { lines.emplace_back(line); });
  }
  ~LogLines() { base::set_log_handler(before); }
  base::LogHandler before;
  Lines lines;
};

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const accelerate::Error& error) {
    return std::string(error_kind_name(error.kind())) + ": " + error.what();
  }
  return "";
}

const accelerate::RankContext rank_0{.rank = 0, .world_size = 2, .host = "a"};
const accelerate::RankContext rank_1{.rank = 1, .world_size = 2, .host = "a"};

}  // namespace

TEST_CASE("a custom tracker gets configuration and rows unchanged, from init to end") {
  const auto diary = std::make_shared<Diary>();
  const Values config{{"lr", 0.1}, {"net", "basic"}, {"layers", 2}, {"fast", true}};
  const Values row{{"loss", Value::Group{{"test", 2.0}, {"train", 1.0}}}, {"epoch", int64_t{3}}};
  Trackers trackers({.log_with = {diary}}, rank_0);
  CHECK(diary->lines.empty());  // nothing before init_trackers()
  trackers.start("digits", config);
  trackers.log(row, 7);
  trackers.log(row, std::nullopt);
  trackers.finish();
  trackers.finish();
  trackers.log(row, 8);
  CHECK(diary->lines == Lines{"start digits in ''", "finish"});
  CHECK(diary->configs == std::vector<Values>{config});
  CHECK(diary->rows == std::vector{std::pair{row, Step(7)}, std::pair{row, Step()}});
}

TEST_CASE("a tracker ends with its Accelerator, and when another run starts") {
  const auto diary = std::make_shared<Diary>();
  {
    Trackers trackers({.log_with = {diary}}, rank_0);
    trackers.start("first", {});
    trackers.start("second", {});
    Trackers moved = std::move(trackers);
    moved.log({{"x", 1}}, 1);
    Trackers assigned;
    assigned = std::move(moved);
    CHECK(diary->rows.size() == 1);
  }
  CHECK(diary->lines == Lines{"start first in ''", "finish", "start second in ''", "finish"});
}

TEST_CASE("only the main process logs; a tracker may request every rank") {
  const auto only_main = std::make_shared<Diary>("main");
  const auto everywhere = std::make_shared<Diary>("everywhere");
  everywhere->only_main = false;
  Trackers trackers({.log_with = {only_main, everywhere}}, rank_1);
  CHECK_FALSE(trackers.in_run());
  trackers.start("digits", {});
  CHECK(trackers.in_run());
  trackers.log({{"loss", 1.0}}, 1);
  CHECK(only_main->rows.empty());
  CHECK(only_main->lines.empty());
  CHECK(everywhere->rows.size() == 1);
  CHECK(trackers.get("everywhere") == everywhere);
  const auto blank = trackers.get("main");  // accepts everything, stores nothing
  blank->log({{"loss", 1.0}}, 1);
  CHECK(blank->name() == "main");
  CHECK(only_main->rows.empty());
}

TEST_CASE("other ranks create no file") {
  const testing::TemporaryFolder folder;
  Trackers trackers({.log_with = {"all"}, .logging_dir = folder.path / "logs"}, rank_1);
  trackers.start("digits", {{"lr", 0.1}});
  trackers.log({{"loss", 1.0}}, 1);
  CHECK_FALSE(std::filesystem::exists(folder.path / "logs"));
}

TEST_CASE("a tracker that fails is reported once, the others continue") {
  const auto failing = std::make_shared<Diary>("failing");
  const auto sound = std::make_shared<Diary>("sound");
  const LogLines log;
  Trackers trackers({.log_with = {failing, sound}}, rank_0);
  trackers.start("digits", {});
  failing->failing = true;
  for (int step = 0; step < 3; ++step) trackers.log({{"loss", 1.0}}, step);
  failing->failing = false;
  trackers.log({{"loss", 1.0}}, 3);
  CHECK(sound->rows.size() == 4);
  CHECK(failing->rows.size() == 1);
  CHECK(log.lines == Lines{"[rank 0 of 2, a] tracker failing: log: the server is gone; training continues, and further "
                           "failures of this tracker are not logged"});
}

TEST_CASE("a tracker may fail in any of its calls, and training and other trackers continue") {
  struct Broken : Tracker {
    explicit Broken(std::string where) : where_(std::move(where)) {}
    [[nodiscard]] std::string name() const override { return "broken"; }
    void store_init_configuration(const Values&) override { fails("store_init_configuration"); }
    void log(const Values&, Step) override { fails("log"); }
    void log_text(const std::string&, const std::string&, Step) override { fails("log_text"); }
    void log_images(const std::string&, const std::vector<Image>&, Step) override { fails("log_images"); }
    void log_histogram(const std::string&, const Histogram&, Step) override { fails("log_histogram"); }
    void finish() override { fails("finish"); }
    void fails(const std::string& in) const {
      if (in == where_) throw 7;  // not even a std::exception
    }
    std::string where_;
  };
  for (const std::string where :
       {"store_init_configuration", "log", "log_text", "log_images", "log_histogram", "finish"}) {
    CAPTURE(where);
    const auto sound = std::make_shared<Diary>();
    const LogLines log;
    Trackers trackers({.log_with = {std::make_shared<Broken>(where), sound}}, rank_0);
    trackers.start("digits", {{"lr", 0.1}});
    trackers.log({{"loss", 1.0}}, 1);
    trackers.log_text("note", "a word", 1);
    trackers.log_images("seen", {}, 1);
    trackers.log_histogram("weights", {}, 1);
    trackers.finish();
    CHECK(sound->configs.size() == 1);
    CHECK(sound->rows.size() == 1);
    CHECK(sound->lines == Lines{"start digits in ''", "finish"});
    REQUIRE(log.lines.size() == 1);
    CHECK(log.lines[0].starts_with("[rank 0 of 2, a] tracker broken: " + where + ": "));
  }
}

TEST_CASE("a tracker that fails to start ends the started ones, and no run starts") {
  struct Late : Diary {
    using Diary::Diary;
    void start(const Run&) override { throw std::runtime_error("no server"); }
  };
  struct Broken : Diary {
    using Diary::Diary;
    void finish() override { throw 7; }
  };
  const auto first = std::make_shared<Diary>("first"), last = std::make_shared<Diary>("last");
  const auto late = std::make_shared<Late>("late");
  const LogLines log;
  {
    Trackers trackers({.log_with = {std::make_shared<Broken>("broken"), first, late, last}}, rank_0);
    CHECK_THROWS_WITH_AS(trackers.start("digits", {}), "no server", std::runtime_error);
    CHECK_FALSE(trackers.in_run());
  }
  CHECK(first->lines == Lines{"start digits in ''", "finish"});
  CHECK(late->lines.empty());
  CHECK(last->lines.empty());
  REQUIRE(log.lines.size() == 1);
  CHECK(log.lines[0].starts_with("[rank 0 of 2, a] tracker broken: finish: "));
}

TEST_CASE("a log before a run starts is reported once, on the rank that would record it") {
  const LogLines log;
  Trackers none;
  none.log({{"loss", 1.0}}, 1);
  Trackers elsewhere({.log_with = {std::make_shared<Diary>()}}, rank_1);
  elsewhere.log({{"loss", 1.0}}, 1);
  CHECK(log.lines.empty());
  Trackers trackers({.log_with = {std::make_shared<Diary>()}}, rank_0);
  trackers.log({{"loss", 1.0}}, 1);
  trackers.log({{"loss", 1.0}}, 2);
  CHECK(log.lines == Lines{"[rank 0 of 2, a] log: no run has begun, so the values are dropped; call init_trackers()"});
}

TEST_CASE("invalid trackers are refused with the existing ones") {
  const auto make = [](std::vector<LogWith> with, std::optional<std::string> folder = std::nullopt) {
    return refusal([&] { (void)Trackers({.log_with = with, .logging_dir = folder}, rank_1); });
  };
  CHECK(make({"wandb"}) ==
        "usage: [rank 1 of 2, a] log_with: there is no tracker 'wandb'; available: csv, jsonl, tensorboard, all; pass "
        "a user-defined tracker as a shared_ptr");
  CHECK(make({std::shared_ptr<Diary>()}) == "usage: [rank 1 of 2, a] log_with: a tracker is null, must be an object");
  CHECK(make({std::make_shared<Diary>("x"), std::make_shared<Diary>("x")}) ==
        "usage: [rank 1 of 2, a] log_with: two trackers are called 'x', names must be unique");
  CHECK(make({"csv"}) ==
        "usage: [rank 1 of 2, a] log_with: 'csv' writes files, but logging_dir is not set; set it to a folder");
  CHECK(make({"csv", "all", "csv"}, "logs").empty());  // one of each
  const Trackers trackers({.log_with = {"csv", "jsonl"}, .logging_dir = "logs"}, rank_0);
  CHECK(refusal([&] { (void)trackers.get("tensorboard"); }) ==
        "usage: [rank 0 of 2, a] get_tracker: there is no tracker 'tensorboard', log_with has: csv, jsonl");
  CHECK(refusal([&] { (void)Trackers().get("csv"); }) ==
        "usage: get_tracker: there is no tracker 'csv', log_with has: none");
}

TEST_CASE("a project name that is not a folder name is refused") {
  const testing::TemporaryFolder folder;
  Trackers trackers({.log_with = {"csv"}, .logging_dir = folder.path}, rank_0);
  for (const std::string project : {"", ".", "..", "../up", "a/b", "/tmp"}) {
    CHECK(refusal([&] { trackers.start(project, {}); }) ==
          "usage: [rank 0 of 2, a] init_trackers: the project is called '" + project +
              "', must be a name for a folder: not empty, without '/'");
  }
  CHECK(std::filesystem::is_empty(folder.path));
}

TEST_CASE("a folder that cannot be written is an error before training begins") {
  const testing::TemporaryFolder folder;
  const auto file = folder.path / "file";
  std::ofstream(file) << "x";
  Trackers below_a_file({.log_with = {"csv"}, .logging_dir = file}, rank_0);
  CHECK(refusal([&] { below_a_file.start("digits", {}); }) ==
        "io: [rank 0 of 2, a] init_trackers: " + (file / "digits").string() +
            " cannot be made: Not a directory; choose another logging_dir");
  std::filesystem::create_directories(folder.path / "digits" / "metrics.csv");  // blocks the path of the file
  Trackers on_a_folder({.log_with = {"csv"}, .logging_dir = folder.path}, rank_0);
  CHECK(refusal([&] { on_a_folder.start("digits", {}); }) ==
        "io: tracking: " + (folder.path / "digits" / "metrics.csv").string() + " cannot be opened: Is a directory");
}

TEST_CASE("every tracker of the table has the name in its row") {
  CHECK(tracker_names() == Lines{"csv", "jsonl", "tensorboard"});
  for (const auto& name : tracker_names()) CHECK(make_tracker(name)->name() == name);
  CHECK(make_tracker("other") == nullptr);
}
