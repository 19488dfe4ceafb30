// SPDX-License-Identifier: Apache-2.0
#include "accelerate/base/nearest.hpp"

#include <doctest/doctest.h>

using accelerate::base::nearest;

TEST_CASE("a name with a typing error leads to the known one") {
  const std::vector<std::string> known{"num_processes", "num_machines", "cpu", "debug"};
  CHECK(nearest("num_proceses", known) == "num_processes");
  CHECK(nearest("nmu_processes", known) == "num_processes");
  CHECK(nearest("num_process", known) == "num_processes");
  CHECK(nearest("num_machine", known) == "num_machines");
  CHECK(nearest("cpus", known) == "cpu");
  CHECK(nearest("debgu", known) == "debug");
  CHECK(nearest("debug", known) == "debug");
}

TEST_CASE("a name that is near to none leads nowhere") {
  const std::vector<std::string> known{"num_processes", "cpu"};
  CHECK_FALSE(nearest("timeout", known));
  CHECK_FALSE(nearest("gp", known));
  CHECK_FALSE(nearest("", known));
  CHECK_FALSE(nearest("x", known));
  CHECK_FALSE(nearest(std::string(1'000'000, 'x'), known));
  CHECK_FALSE(nearest("cpu", {}));
}

TEST_CASE("of two that are as near the first is named") { CHECK(nearest("cpx", {"cpa", "cpb"}) == "cpa"); }
