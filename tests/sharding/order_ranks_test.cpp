// SPDX-License-Identifier: Apache-2.0
// Orders of units on real processes; the launcher selects the backend.
#include "tests/testing.hpp"
//
#include <functional>

#include "tests/world.hpp"

namespace {

void with_order_ranks(const std::function<void(const accelerate::comm::Group&)>& check) { check(testing::world()); }

}  // namespace

#include "tests/sharding/order_cases.hpp"
