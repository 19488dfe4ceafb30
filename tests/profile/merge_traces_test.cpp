// SPDX-License-Identifier: Apache-2.0
#include "accelerate/profile/merge_traces.hpp"

#include <nlohmann/json.hpp>

#include "accelerate/base/error.hpp"
#include "tests/testing.hpp"

using accelerate::profile::merged_trace;
using Json = nlohmann::json;

namespace {

// As LibTorch writes them: times in microseconds after the base, process ids as numbers and as names.
std::string trace(int64_t base_ns, const std::string& ts) {
  return R"({"schemaVersion":1,"baseTimeNanoseconds":)" + std::to_string(base_ns) + R"(,"traceEvents":[
    {"ph":"M","name":"process_name","pid":77,"tid":0,"ts":0,"args":{"name":"mnist"}},
    {"ph":"X","name":"aten::mm","pid":77,"tid":77,"dur":2.5,"ts":)" +
         ts + R"(},
    {"ph":"X","name":"PyTorch Profiler","pid":"Spans","tid":"x","dur":5,"ts":)" +
         ts + R"(},
    {"ph":"s","name":"ac2g","id":3,"pid":77,"tid":77,"ts":)" +
         ts + "}]}";
}

}  // namespace

TEST_CASE("ranks' processes stay apart under their names, and their times are on one clock") {
  const auto whole = Json::parse(merged_trace({{0, trace(5'000'000, "10.5")}, {3, trace(2'000'000, "20")}}));
  CHECK(whole["baseTimeNanoseconds"] == 2'000'000);
  const auto& events = whole["traceEvents"];
  REQUIRE(events.size() == 8);
  CHECK(events[0]["args"]["name"] == "rank 0: mnist");
  CHECK(events[4]["args"]["name"] == "rank 3: mnist");
  CHECK(events[1]["ts"] == 3010.5);
  CHECK(events[5]["ts"] == 20.0);
  CHECK(events[1]["dur"] == 2.5);
  CHECK(events[0]["pid"] == events[1]["pid"]);
  CHECK(events[1]["pid"] != events[2]["pid"]);
  CHECK(events[1]["pid"] != events[5]["pid"]);
  CHECK(events[2]["pid"] != events[6]["pid"]);
  CHECK(events[3]["id"] != events[7]["id"]);
}

TEST_CASE("no traces are an empty one, and what is no trace is refused with its rank") {
  CHECK(Json::parse(merged_trace({}))["traceEvents"].empty());
  for (const char* text : {"", "{", "[]", "{}", R"({"traceEvents":3})"}) {
    CHECK_THROWS_WITH_AS((void)merged_trace({{2, text}}),
                         "merge traces: rank 2's is no Chrome trace: an object with traceEvents", accelerate::Error);
  }
}
