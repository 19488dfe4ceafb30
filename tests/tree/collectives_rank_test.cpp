// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include "tests/tree/collectives_cases.hpp"
#include "tests/world.hpp"

TEST_CASE("nested collectives are correct between processes") {
  for (const auto& [name, failed] : tree_cases::run(testing::world())) {
    INFO(name);
    CHECK(failed == "");
  }
}
