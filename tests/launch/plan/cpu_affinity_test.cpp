// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/cpu_affinity.hpp"

#include <doctest/doctest.h>

#include "launch/plan/machine.hpp"

using accelerate::launch::assign_processors;
using accelerate::launch::parse_processors;
using Shares = std::vector<std::vector<int>>;

TEST_CASE("ranks divide a node's processors evenly into contiguous parts") {
  CHECK(assign_processors({{0, 4, 1, 5}}, 2) == Shares{{0, 4}, {1, 5}});
  CHECK(assign_processors({{0, 1, 2}}, 2) == Shares{{0}, {1, 2}});
  CHECK(assign_processors({{3}}, 1) == Shares{{3}});
}

TEST_CASE("each rank stays within a NUMA node if the ranks divide evenly among the nodes") {
  CHECK(assign_processors({{0, 1, 2, 3}, {8, 9}}, 2) == Shares{{0, 1, 2, 3}, {8, 9}});
  CHECK(assign_processors({{0, 1, 2, 3}, {8, 9}}, 4) == Shares{{0, 1}, {2, 3}, {8}, {9}});
  CHECK(assign_processors({{0, 1, 2, 3}, {8, 9}}, 3) == Shares{{0, 1}, {2, 3}, {8, 9}});
}

TEST_CASE("more ranks than processors are assigned in turn") {
  CHECK(assign_processors({{0, 1}}, 3) == Shares{{0}, {1}, {0}});
  CHECK(assign_processors({}, 2) == Shares{{}, {}});
}

TEST_CASE("a list of processors is parsed in the system's format") {
  CHECK(parse_processors("0-3,8,10-11") == std::vector<int>{0, 1, 2, 3, 8, 10, 11});
  CHECK(parse_processors("5") == std::vector<int>{5});
  for (const char* none : {"", "x", "3-", "-1", "0-99999999999", "0-9999999"}) {
    CAPTURE(none);
    CHECK(parse_processors(none).empty());
  }
}
