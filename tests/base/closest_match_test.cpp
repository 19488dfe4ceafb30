// SPDX-License-Identifier: Apache-2.0
#include "accelerate/base/closest_match.hpp"

#include <doctest/doctest.h>

using accelerate::base::closest_match;

TEST_CASE("a name with a typing error matches the known name") {
  const std::vector<std::string> known{"num_processes", "num_machines", "cpu", "debug"};
  CHECK(closest_match("num_proceses", known) == "num_processes");
  CHECK(closest_match("nmu_processes", known) == "num_processes");
  CHECK(closest_match("num_process", known) == "num_processes");
  CHECK(closest_match("num_machine", known) == "num_machines");
  CHECK(closest_match("cpus", known) == "cpu");
  CHECK(closest_match("debgu", known) == "debug");
  CHECK(closest_match("debug", known) == "debug");
}

TEST_CASE("a name without a similar one matches none") {
  const std::vector<std::string> known{"num_processes", "cpu"};
  CHECK_FALSE(closest_match("timeout", known));
  CHECK_FALSE(closest_match("gp", known));
  CHECK_FALSE(closest_match("", known));
  CHECK_FALSE(closest_match("x", known));
  CHECK_FALSE(closest_match(std::string(1'000'000, 'x'), known));
  CHECK_FALSE(closest_match("cpu", {}));
}

TEST_CASE("the first of two equally similar names is returned") {
  CHECK(closest_match("cpx", {"cpa", "cpb"}) == "cpa");
}
