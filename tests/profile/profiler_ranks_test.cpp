// SPDX-License-Identifier: Apache-2.0
// Several ranks with profilers, over real backends.
#include <ATen/record_function.h>

#include <chrono>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "accelerate/profile/profiler.hpp"
#include "tests/temporary_folder.hpp"
#include "tests/testing.hpp"
#include "tests/world.hpp"

using accelerate::profile::Profiler;
using Json = nlohmann::json;
using namespace std::chrono_literals;

namespace {

/// A folder of rank 0 for all ranks.
struct SharedFolder {
  std::optional<testing::TemporaryFolder> made{};
  std::string path{};

  SharedFolder() {
    const auto& world = testing::world();
    if (world.rank() == 0) made.emplace();
    path = world.broadcast_bytes(made ? made->path.string() : "", 0);
  }
};

std::string mark_of(int64_t rank) { return "turn of rank " + std::to_string(rank); }

/// Each rank in turn runs a range that has its name.
void run_in_rank_order() {
  const auto& world = testing::world();
  for (int64_t turn = 0; turn < world.size(); ++turn) {
    if (turn == world.rank()) {
      RECORD_USER_SCOPE(mark_of(turn));
      static_cast<void>(torch::ones({8, 8}).mm(torch::ones({8, 8})));
    }
    world.barrier();
    std::this_thread::sleep_for(5ms);  // profiler clocks are accurate to some microseconds
  }
}

}  // namespace

TEST_CASE("the merged trace has each rank's operators under its name, on one clock") {
  const auto& world = testing::world();
  const SharedFolder folder;
  Profiler profiler({.output_trace_dir = folder.path + "/traces"}, world, at::kCPU);
  run_in_rank_order();
  profiler.stop();
  if (world.rank() == 0) {
    const auto whole = Json::parse(testing::text_of(folder.path + "/traces/profile.json"));
    std::map<std::string, std::string> process_names;
    std::map<std::string, Json> marks;
    for (const auto& event : whole.at("traceEvents")) {
      const auto name = event.value("name", "");
      if (name == "process_name") process_names.try_emplace(event.at("pid").dump(), event.at("args").at("name"));
      if (name.starts_with("turn of rank ") && event.value("ph", "") == "X") marks[name] = event;
    }
    REQUIRE(marks.size() == static_cast<size_t>(world.size()));
    double before = 0;
    for (int64_t rank = 0; rank < world.size(); ++rank) {
      const auto& mark = marks.at(mark_of(rank));
      CHECK(process_names.at(mark.at("pid").dump()).starts_with("rank " + std::to_string(rank) + ": "));
      CHECK(mark.at("ts").get<double>() > before);
      before = mark.at("ts").get<double>() + mark.at("dur").get<double>();
    }
  }
  world.barrier();
}

TEST_CASE("the summary has each rank's steps, operators and communication") {
  const auto& world = testing::world();
  const SharedFolder folder;
  Profiler profiler({.schedule_option = accelerate::profile::ProfileSchedule{.wait = 1, .active = 3, .repeat = 1},
                     .with_flops = true,
                     .output_trace_dir = folder.path + "/traces"},
                    world, at::kCPU);
  for (int step = 0; step < 5; ++step) {
    const auto sum = torch::ones({8, 8}).mm(torch::ones({8, 8}));
    world.all_reduce(sum);
    profiler.step();
  }
  profiler.stop();
  if (world.size() > 1) CHECK(profiler.summary().communication_ns > 0);
  if (world.rank() == 0) {
    const auto whole = Json::parse(testing::text_of(folder.path + "/traces/profile_summary.json"));
    REQUIRE(whole.at("ranks").size() == static_cast<size_t>(world.size()));
    for (int64_t rank = 0; rank < world.size(); ++rank) {
      const auto& one = whole.at("ranks").at(static_cast<size_t>(rank));
      CHECK(one.at("rank") == rank);
      CHECK(one.at("step_ms").size() == 3);
      CHECK(one.at("gflop").get<double>() >= 3 * 2 * 8 * 8 * 8 * 1e-9);
      // A single rank communicates if force_group is set, with nccl.
      const bool communicates = world.size() > 1 || testing::connect_options().force_group;
      CHECK((one.at("communication_ms").get<double>() > 0) == communicates);
      CHECK(std::any_of(one.at("operators").begin(), one.at("operators").end(),
                        [](const Json& row) { return row.at("name") == "aten::mm" && row.at("calls") == 3; }));
    }
  }
  world.barrier();
}

TEST_CASE("a broken trace or an exception of on_trace_ready on one rank does not block stop() on the others") {
  const auto& world = testing::world();
  const SharedFolder folder;
  const int64_t broken = world.size() - 1;
  const std::string traces = folder.path + "/traces";
  Profiler profiler({.on_trace_ready =
                         [&](Profiler&) {
                           if (world.rank() != broken) return;
                           std::ofstream(traces + "/profile_" + std::to_string(broken) + ".json") << "{";
                           throw 7;
                         },
                     .output_trace_dir = traces},
                    world, at::kCPU);
  static_cast<void>(torch::ones({8, 8}).mm(torch::ones({8, 8})));
  if (world.rank() == broken) {
    CHECK_THROWS_AS(profiler.stop(), int);
  } else {
    profiler.stop();
  }
  world.barrier();
  if (world.rank() == 0) {
    const auto whole = Json::parse(testing::text_of(traces + "/profile.json"));
    CHECK(whole.at("traceEvents").empty() == (world.size() == 1));
    const auto summary = Json::parse(testing::text_of(traces + "/profile_summary.json"));
    CHECK(summary.at("ranks").size() == static_cast<size_t>(world.size()));
  }
  world.barrier();
}
