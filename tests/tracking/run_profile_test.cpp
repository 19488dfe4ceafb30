// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tracking/run_profile.hpp"

#include <doctest/doctest.h>

using namespace accelerate::tracking;

namespace {

const char* const two_ranks = R"({"ranks":[
  {"rank":0,"host":"gpu-a","step_ms":[10.0,30.0],"data_wait_ms":1.0,"communication_ms":8.0,"overlapped_ms":6.0,"device_busy_ms":36.0,
   "gflop":2.0,"peak_gflop_per_s":100.0,"peak_allocated_bytes":3145728,"peak_resident_bytes":2147483648,"operators":[
     {"name":"aten::mm","calls":4,"self_ms":6.0,"total_ms":6.0,"device_ms":0.5,"gflop":2.0},
     {"name":"<b>","calls":1,"self_ms":9.0,"total_ms":9.0,"gflop":0.0}]},
  {"rank":1,"host":"gpu-b","step_ms":[20.0,20.0],"data_wait_ms":10.0,"communication_ms":0.0,"overlapped_ms":0.0,
   "operators":[{"name":"aten::mm","calls":4,"self_ms":2.0,"total_ms":2.0,"device_ms":0.25}]}]})";

}  // namespace

TEST_CASE("a profile is parsed, and operators of all ranks are added up by name") {
  const auto ranks = parse_run_profile(two_ranks);
  REQUIRE(ranks.has_value());
  REQUIRE(ranks->size() == 2);
  CHECK(ranks->at(0).host == "gpu-a");
  CHECK(ranks->at(0).length_ms() == 40.0);
  CHECK(ranks->at(1).gflop == 0.0);
  CHECK(ranks->at(0).peak_allocated_bytes == 3145728);
  CHECK(ranks->at(0).peak_resident_bytes == 2147483648);
  CHECK(ranks->at(1).peak_resident_bytes == 0);
  const auto operators = operators_of(*ranks);
  REQUIRE(operators.size() == 2);
  CHECK(operators[0].name == "aten::mm");
  CHECK(operators[0].calls == 8);
  CHECK(operators[0].self_ms == 8.0);
  CHECK(operators[0].device_ms == 0.75);
  CHECK(operators[1].total_ms == 9.0);  // takes longer on the host, but launched no device work
}

TEST_CASE("the verdict names the rank with the longest wait for data, with 5 % of the steps as limit") {
  auto ranks = parse_run_profile(two_ranks).value();
  CHECK(data_verdict(ranks) ==
        "The data are the bottleneck: rank 1 waited 25.0 % of its steps for them. More workers (num_workers), or a "
        "cheaper read, would help.");
  ranks[1].data_wait_ms = 2.0;
  ranks[0].data_wait_ms = 0.5;
  CHECK(data_verdict(ranks) ==
        "The step is the bottleneck, the data keep up: rank 1 waited longest for them, 5.0 % of its steps.");
  CHECK(data_verdict({}) == "No step was recorded.");
}

TEST_CASE("a page has a row and a curve for each rank, known rates, and escaped names") {
  const auto page = profile_html(parse_run_profile(two_ranks).value(), "Profile of <x>");
  const auto has = [&](const std::string& text) { return page.find(text) != std::string::npos; };
  CHECK(has("<h2>Profile of &lt;x&gt;</h2>"));
  CHECK(
      has("<tr><th>rank 0, gpu-a</th><td class=\"number\">2</td><td class=\"number\">20.00</td>"
          "<td class=\"number\">30.00</td><td class=\"number\">2.5 %</td><td class=\"number\">20.0 %</td>"
          "<td class=\"number\">75.0 %</td><td class=\"number\">90.0 %</td><td class=\"number\">50.0</td><td "
          "class=\"number\">50.0 %</td>"
          "<td class=\"number\">2.0 GiB</td><td class=\"number\">3.0 MiB</td><td><div class=\"bar\">"));
  CHECK(has("<tr><th>rank 1, gpu-b</th>"));
  CHECK(
      has("<td class=\"number\">-</td><td class=\"number\">-</td><td class=\"number\">-</td><td class=\"number\">-</td>"
          "<td class=\"number\">-</td>"
          "<td><div class=\"bar\">"
          "<span class=\"data\" style=\"width:25.0%\">"));
  CHECK(has("<g class=\"line0\"><polyline"));
  CHECK(has("<g class=\"line1\"><polyline"));
  CHECK(has(">rank 1</text>"));
  CHECK(has(
      "<tr><th>aten::mm</th><td class=\"number\">8</td><td class=\"number\">8.000</td><td class=\"number\">47.1 %</td>"
      "<td class=\"number\">8.000</td><td class=\"number\">1000.0</td><td class=\"number\">0.750</td>"
      "<td class=\"number\">2.000</td></tr>"));
  CHECK(has("<tr><th>&lt;b&gt;</th>"));
}

TEST_CASE("foreign content in a profile is ignored") {
  for (const char* text : {"", "{", "[]", "3", R"({"ranks":7})", R"({"rank":[]})"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_run_profile(text).has_value());
  }
  const auto odd = parse_run_profile(
      R"({"ranks":[7,{"rank":-1e300,"step_ms":[1e308,1e308,"x",-1],"data_wait_ms":"nan","operators":[3,{"calls":1e300}]},{}]})");
  REQUIRE(odd.has_value());
  CHECK(odd->size() == 2);
  const std::string page = profile_html(*odd, "odd");
  for (const char* number : {">inf", ">-inf", ">nan", ">-nan", ",inf", ",nan", "\"nan", "\"inf"}) {
    CAPTURE(number);
    CHECK(page.find(number) == std::string::npos);
  }
}
