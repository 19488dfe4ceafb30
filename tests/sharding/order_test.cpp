// SPDX-License-Identifier: Apache-2.0
// Orders of units on ranks that are threads.
#include "tests/testing.hpp"
//
#include <functional>

#include "accelerate/comm/group.hpp"

namespace {

void with_order_ranks(const std::function<void(const accelerate::comm::Group&)>& check) {
  for (const int64_t ranks : {2, 3}) accelerate::comm::run_threads(ranks, check);
}

}  // namespace

#include "tests/sharding/order_cases.hpp"
