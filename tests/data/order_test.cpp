// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include "accelerate/data/order.hpp"

using accelerate::data::epoch_order;

TEST_CASE("a shuffled epoch is PyTorch's randperm with the seed plus the epoch") {
  struct Row {
    int64_t n;
    uint64_t seed;
    std::vector<int64_t> order;
  };
  const std::vector<Row> rows{
      {6, 42, {0, 3, 2, 4, 1, 5}},
      {6, 43, {4, 0, 5, 1, 2, 3}},
      {8, 42, {6, 3, 0, 7, 2, 1, 4, 5}},
      {8, 43, {4, 5, 7, 1, 3, 2, 6, 0}},
      {8, 44, {4, 7, 3, 2, 1, 5, 6, 0}},
      {10, 42, {2, 6, 1, 8, 4, 5, 0, 9, 3, 7}},
      {10, 43, {8, 4, 9, 0, 5, 1, 6, 7, 2, 3}},
      {10, 44, {2, 6, 3, 8, 7, 9, 1, 4, 5, 0}},
  };
  for (const auto& row : rows) {
    CHECK(epoch_order(row.n, true, row.seed, 0).equal(torch::tensor(row.order)));
    if (row.seed > 42)
      CHECK(epoch_order(row.n, true, 42, static_cast<int64_t>(row.seed) - 42).equal(torch::tensor(row.order)));
  }
}

TEST_CASE("an order takes nothing from the default generator") {
  torch::manual_seed(1);
  const auto expected = torch::rand(3);
  torch::manual_seed(1);
  (void)epoch_order(100, true, 5, 0);
  CHECK(torch::rand(3).equal(expected));
}

TEST_CASE("without shuffle every epoch counts up, and no samples are no order") {
  CHECK(epoch_order(4, false, 42, 3).equal(torch::tensor({0, 1, 2, 3}, torch::kLong)));
  CHECK(epoch_order(0, true, 42, 0).numel() == 0);
}
