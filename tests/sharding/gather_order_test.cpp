// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include "accelerate/sharding/gather_order.hpp"

using accelerate::sharding::GatherOrder;

namespace {

void gather(GatherOrder& order, const std::vector<int64_t>& units) {
  for (const int64_t unit : units) order.record_gather(unit);
}

}  // namespace

TEST_CASE("the previous pass predicts the next gather until the order deviates") {
  GatherOrder order;
  order.begin_pass(true);
  CHECK_FALSE(order.predicted().has_value());
  gather(order, {0, 1, 2, 1, 0});
  CHECK_FALSE(order.predicted().has_value());
  order.begin_pass(true);
  CHECK(order.predicted() == 0);
  order.record_gather(0);
  CHECK(order.predicted() == 1);
  order.record_gather(2);  // another order
  CHECK_FALSE(order.predicted().has_value());
  order.record_gather(2);
  CHECK_FALSE(order.predicted().has_value());
  order.begin_pass(true);
  CHECK(order.predicted() == 0);
  gather(order, {0, 2, 2});
  CHECK_FALSE(order.predicted().has_value());  // the previous pass ended here
}

TEST_CASE("passes with and without a graph are predicted separately") {
  GatherOrder order;
  order.begin_pass(true);
  gather(order, {0, 1, 0});
  order.begin_pass(false);
  gather(order, {5, 6});
  order.begin_pass(true);
  CHECK(order.predicted() == 0);
  order.begin_pass(false);
  CHECK(order.predicted() == 5);
}

TEST_CASE("a predicted gather is one of the forward or of the backward, as in the previous pass") {
  GatherOrder order;
  order.begin_pass(true);
  CHECK_FALSE(order.predicts_backward());
  gather(order, {0, 1});
  order.record_gather(0, /*in_backward=*/true);
  order.begin_pass(true);
  CHECK_FALSE(order.predicts_backward());
  gather(order, {0, 1});
  CHECK(order.predicted() == 0);
  CHECK(order.predicts_backward());
  order.record_gather(1);
  CHECK_FALSE(order.predicts_backward());
}

TEST_CASE("the hash depends on the order of gathers and reductions since the history was cleared") {
  GatherOrder first, second;
  gather(first, {0, 1});
  gather(second, {1, 0});
  CHECK(first.hash() != second.hash());
  CHECK(first.history() == "gather 0, gather 1");
  first.clear_history();
  second.clear_history();
  CHECK(first.hash() == second.hash());
  first.record_gather(3);
  second.record_reduction(3);
  CHECK(first.hash() != second.hash());
  CHECK(second.history() == "reduce 3");
}

TEST_CASE("the hash of reductions does not depend on gathers") {
  GatherOrder first, second;
  gather(first, {0, 1});
  first.record_reduction(1);
  first.record_reduction(0);
  second.record_reduction(1);
  gather(second, {2});
  CHECK(first.reduction_hash() != second.reduction_hash());
  second.record_reduction(0);
  CHECK(first.reduction_hash() == second.reduction_hash());
  CHECK(first.hash() != second.hash());
  CHECK(first.reduction_history() == "reduce 1, reduce 0");
  CHECK(second.history() == "reduce 1, gather 2, reduce 0");
  first.clear_history();
  CHECK(first.reduction_hash() == GatherOrder().reduction_hash());
}
