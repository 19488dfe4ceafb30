// SPDX-License-Identifier: Apache-2.0
#include "accelerate/profile/merge_traces.hpp"

#include <nlohmann/json.hpp>

#include "tests/testing.hpp"

using accelerate::profile::merged_trace;
using accelerate::profile::with_escaped_names;
using Json = nlohmann::json;

namespace {

// The format of LibTorch: times in microseconds after the base, process ids as numbers and as names.
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

TEST_CASE("the merged trace separates the ranks' processes by name and uses one clock") {
  const auto whole = Json::parse(merged_trace({{0, trace(5'000'000, "10.5")}, {3, trace(2'000'000, "20")}}).json);
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

TEST_CASE("no traces result in an empty one, and invalid ones are omitted with their rank") {
  CHECK(Json::parse(merged_trace({}).json)["traceEvents"].empty());
  for (const char* text : {"", "{", "[]", "{}", R"({"traceEvents":3})"}) {
    const auto merged = merged_trace({{0, text}, {2, text}, {3, trace(2'000'000, "20")}, {5, text}});
    CHECK(merged.left_out == std::vector<int64_t>{0, 2, 5});
    const auto whole = Json::parse(merged.json);
    CHECK(whole["baseTimeNanoseconds"] == 2'000'000);
    CHECK(whole["traceEvents"].size() == 4);
    CHECK(whole["traceEvents"][0]["args"]["name"] == "rank 3: mnist");
  }
}

TEST_CASE("quotes in range names are escaped once, and all else is unchanged") {
  const auto range = [](const std::string& name) {
    return R"(  {"ph": "X", "cat": "user_annotation", "name": ")" + name + R"(", "pid": 77, "tid": 77,
    "ts": 3.500, "dur": 2.500,
    "args": {"External id": 1}
  })";
  };
  for (const std::string name : {"\"", "layer \"a\"", "a\", \"pid\": 3, \"name\": \"b", "\", \"pid\": ", "", "plain"}) {
    CAPTURE(name);
    const std::string written = "{\"traceEvents\": [\n" + range(name) + ",\n" + range("next") + "\n]}";
    const auto escaped = with_escaped_names(written);
    const auto read = Json::parse(escaped);
    CHECK(read["traceEvents"][0]["name"] == name);
    CHECK(read["traceEvents"][0]["pid"] == 77);
    CHECK(read["traceEvents"][1]["name"] == "next");
    CHECK(with_escaped_names(escaped) == escaped);
    if (name.find('"') == std::string::npos) CHECK(escaped == written);
  }
  for (const auto& other : {std::string(), std::string("\n"), std::string("\"name\": \"a\"b\""), trace(1, "2")}) {
    CHECK(with_escaped_names(other) == other);
  }
}
