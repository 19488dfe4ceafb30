// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <array>

#include "accelerate/tree/collectives.hpp"
#include "tests/tree/collectives_cases.hpp"

namespace comm = accelerate::comm;
namespace tree = accelerate::tree;

TEST_CASE("nested collectives are correct on 1 to 4 thread ranks") {
  for (const int64_t world : {1, 2, 3, 4}) {
    std::vector<tree_cases::Results> ranks(static_cast<size_t>(world));
    comm::run_threads(
        world, [&](const comm::Group& group) { ranks[static_cast<size_t>(group.rank())] = tree_cases::run(group); });
    for (const auto& results : ranks)
      for (const auto& [name, failed] : results) {
        INFO(name);
        CHECK(failed == "");
      }
  }
}

TEST_CASE("a result never shares memory with the argument, except for broadcast") {
  const auto check = [](const comm::Group& group) {
    const std::pair<at::Tensor, at::Tensor> value{torch::arange(3), torch::tensor(true)};
    std::vector<std::pair<at::Tensor, at::Tensor>> results{
        tree::gather(value, group), tree::reduce(value, group), tree::pad_across_processes(value, group, {.dim = 0}),
        tree::pad_across_processes(value, group, {.dim = 1}), tree::reduce(value, group, comm::ReduceOp::max, 1.0)};
    for (auto& result : results) {
      if (group.size() == 1) CHECK(result.first.equal(value.first));
      result.first.zero_();
      result.second.zero_();
      CHECK(value.first.equal(torch::arange(3)));
      CHECK(value.second.item<bool>());
    }
    CHECK(tree::broadcast(value, group).first.is_same(value.first));
  };
  check({});
  comm::run_threads(2, check);
}

TEST_CASE("on one process a scalar stays a scalar, and scale applies") {
  const comm::Group alone;
  CHECK(tree::gather(torch::tensor(true), alone).dim() == 0);
  CHECK(tree::reduce(torch::ones(2), alone, comm::ReduceOp::sum, 0.5).equal(torch::full({2}, 0.5)));
}

TEST_CASE("pad_input_tensors adds rows of zeros up to a multiple of the world size") {
  const std::vector<std::array<int64_t, 3>> rows{{1, 2, 2}, {3, 2, 4}, {4, 3, 6}, {3, 4, 4},
                                                 {4, 6, 6}, {1, 6, 6}, {2, 6, 6}, {61, 6, 66}};
  for (const auto& [batch, world, expected] : rows) {
    const auto padded = tree::pad_input_tensors(torch::ones({batch, 2}, torch::kBool), world);
    CHECK(padded.equal(torch::cat({torch::ones({batch, 2}), torch::zeros({expected - batch, 2})}).to(torch::kBool)));
  }
  const std::pair<at::Tensor, at::Tensor> divides{torch::ones({4, 2}), torch::tensor(1)};
  CHECK(tree::pad_input_tensors(divides, 2).first.is_same(divides.first));
  CHECK(tree::pad_input_tensors(divides, 3).second.is_same(divides.second));
  CHECK_THROWS_WITH((void)tree::pad_input_tensors(divides, 0),
                    "pad_input_tensors: world_size is 0, must be at least 1");
}
