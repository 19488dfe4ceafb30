// SPDX-License-Identifier: Apache-2.0
#include "accelerate/base/random_id.hpp"

#include <doctest/doctest.h>

#include <set>

using accelerate::base::random_id;

TEST_CASE("ids have 32 hexadecimal digits and differ") {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = random_id();
    REQUIRE(id.size() == 32);
    REQUIRE(id.find_first_not_of("0123456789abcdef") == std::string::npos);
    REQUIRE(seen.insert(id).second);
  }
}
