// SPDX-License-Identifier: Apache-2.0
#include "tests/nn/support.hpp"

using namespace nn_testing;
using accelerate::nn::check_synchronized;
using accelerate::nn::CheckedTensor;

namespace {

std::vector<CheckedTensor> three(int64_t rank, const std::vector<int64_t>& odd_ranks) {
  const bool odd = std::find(odd_ranks.begin(), odd_ranks.end(), rank) != odd_ranks.end();
  const at::Tensor weight = torch::ones({2, 3});
  if (odd) weight[1][2] = 2;
  return {{"parameter first", torch::zeros({4}, at::kDouble)},
          {"parameter weight", weight},
          {"buffer mean", torch::full({1}, odd ? 1.0 : 0.0)}};
}

std::string text(const Group& group, const std::string& which) {
  return accelerate::base::prefix(group.place()) + "check_synchronized: " + which +
         "; something changed it on some ranks alone: a step of an optimizer that was not prepared, code under "
         "is_main_process(), random numbers that differ between ranks; load the same state on all ranks to continue";
}

void check_refused(int64_t ranks, const std::vector<int64_t>& odd_ranks, const std::string& which) {
  run_threads(
      ranks,
      [&](const Group& group) {
        CHECK_THROWS_WITH_AS(check_synchronized(group, three(group.rank(), odd_ranks)), text(group, which).c_str(),
                             accelerate::Error);
        CHECK_NOTHROW(check_synchronized(group, three(0, {})));  // the group still works
      },
      kTimeout);
}

}  // namespace

TEST_CASE("equal tensors cost one operation of 16 bytes; only different ones are listed") {
  run_threads(
      2,
      [](const Group& group) {
        CHECK(operations_in(group, [&] { check_synchronized(group, three(0, {})); }) == 1);
        const auto refused = [&] { check_synchronized(group, three(group.rank(), {1})); };
        CHECK(operations_in(group, [&] { CHECK_THROWS_AS(refused(), accelerate::Error); }) <= 3);
        if (group.rank() == 0) {  // the transferred data, as shown by the other rank's error
          CHECK_THROWS_WITH(check_synchronized(group, three(0, {})),
                            doctest::Contains("this rank sends [2] int64, rank 1 sends [3] float32"));
        } else {
          CHECK_THROWS_AS(group.all_reduce(torch::ones({3}), accelerate::comm::ReduceOp::max), accelerate::Error);
        }
      },
      kTimeout);
}

TEST_CASE("the first different tensor is reported with the ranks that agree on it") {
  check_refused(2, {1},
                "parameter weight [2, 3] Float has one value on rank 0, another on rank 1 (2 of 3 tensors differ)");
  check_refused(
      4, {1, 3},
      "parameter weight [2, 3] Float has one value on ranks 0, 2, another on ranks 1, 3 (2 of 3 tensors differ)");
  check_refused(
      4, {0},
      "parameter weight [2, 3] Float has one value on rank 0, another on ranks 1, 2, 3 (2 of 3 tensors differ)");
}

TEST_CASE("different values on each rank, different shapes and different tensors are reported") {
  run_threads(
      3,
      [](const Group& group) {
        const auto mine = static_cast<double>(group.rank());
        CHECK_THROWS_WITH(
            check_synchronized(group, {{"parameter w", torch::full({1}, mine)}}, "after 8 optimizer steps"),
            text(group,
                 "after 8 optimizer steps parameter w [1] Float has one value on rank 0, another on rank 1, another on "
                 "rank 2 (1 of 1 tensors differ)")
                .c_str());
        CHECK_THROWS_WITH(
            check_synchronized(group, {{"parameter w", torch::zeros({group.rank() == 2 ? 2 : 1})}}),
            text(group,
                 "parameter w [1] Float has one value on ranks 0, 1, parameter w [2] Float on rank 2 (1 of 1 tensors "
                 "differ)")
                .c_str());
        std::vector<CheckedTensor> tensors{{"parameter w", torch::zeros({1})}};
        if (group.rank() == 1) tensors.push_back({"buffer b", torch::zeros({1})});
        CHECK_THROWS_WITH(
            check_synchronized(group, tensors),
            text(group,
                 "no such tensor has one value on ranks 0, 2, buffer b [1] Float on rank 1 (1 of 2 tensors "
                 "differ)")
                .c_str());
      },
      kTimeout);
}

TEST_CASE("undefined tensors are skipped, and a single rank compares nothing") {
  run_threads(
      2,
      [](const Group& group) {
        CHECK_NOTHROW(check_synchronized(group, {{"buffer none", at::Tensor()}}));
      },
      kTimeout);
  CHECK_NOTHROW(check_synchronized(Group(), three(0, {0})));
}

TEST_CASE("ranks with the same part are compared, and every rank throws the difference of any part") {
  run_threads(
      4,
      [](const Group& group) {
        const auto check = [&](double difference) {
          const double value = static_cast<double>(group.rank() % 2) + (group.rank() == 3 ? difference : 0);
          check_synchronized(group, {{"part of weight", torch::full({3}, value)}}, {},
                             {.index = group.rank() % 2, .count = 2});
        };
        CHECK_NOTHROW(check(0));
        CHECK_THROWS_WITH_AS(
            check(1),
            text(group, "part of weight [3] Float has one value on rank 1, another on rank 3 (1 of 1 tensors differ)")
                .c_str(),
            accelerate::Error);
        CHECK_NOTHROW(check(0));  // the group still works
      },
      kTimeout);
}
