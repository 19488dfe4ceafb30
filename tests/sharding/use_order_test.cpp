// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include "accelerate/sharding/use_order.hpp"

using accelerate::comm::Group;
using accelerate::comm::run_threads;
using accelerate::sharding::UseOrder;

TEST_CASE("all ranks get rank 0's order of the last forward, and the units that it did not use at the end") {
  run_threads(3, [](const Group& group) {
    UseOrder order;
    order.record(1);  // before the forward, as by code that prints a parameter
    order.begin_pass();
    for (const int64_t unit : {4, 2, 4, 3}) order.record(group.rank() == 0 ? unit : 4 - unit);
    CHECK(order.fix(group, 5) == std::vector<int64_t>{4, 2, 3, 0, 1});
    order.begin_pass();
    order.record(3);
    CHECK(order.fix(group, 5) == std::vector<int64_t>{4, 2, 3, 0, 1});
  });
}

TEST_CASE("without a forward the units have the order of the plan") {
  run_threads(2, [](const Group& group) {
    UseOrder order;
    CHECK(order.fix(group, 3) == std::vector<int64_t>{0, 1, 2});
  });
}
