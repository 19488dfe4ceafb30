// SPDX-License-Identifier: Apache-2.0
// N ranks with batch B train like one rank with batch N*B. Used by unit tests (threads) and rank tests (processes).
#pragma once

#include "support.hpp"

namespace gradient_testing {

/// Runs 50 steps in float64 with the optimizer that make_optimizer returns for a list of parameters. Every rank trains
/// its part through a reducer and, in addition, the whole batch alone. Parameters must agree within 1e-12, and be
/// bit-equal on all ranks.
template <typename MakeOptimizer>
void check_equivalence(const Group& group, const MakeOptimizer& make_optimizer) {
  auto net = built(make_net);
  auto whole = built(make_net);
  auto optimizer = make_optimizer(net->parameters());
  auto whole_optimizer = make_optimizer(whole->parameters());
  GradientReducer gradient_reducer(group, named(net), small_buckets());
  double largest = 0;
  for (int64_t step = 0; step < 50; ++step) {
    std::vector<at::Tensor> batches;
    for (int64_t rank = 0; rank < group.size(); ++rank) batches.push_back(batch(rank, step));
    gradient_reducer.zero_all();
    net->with_extra(batches[static_cast<size_t>(group.rank())]).pow(2).mean().backward();
    gradient_reducer.before_step();
    optimizer.step();
    whole_optimizer.zero_grad();
    whole->with_extra(torch::cat(batches)).pow(2).mean().backward();
    whole_optimizer.step();
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      const at::Tensor apart = (net->parameters()[i] - whole->parameters()[i]).detach().abs().max();
      largest = std::max(largest, apart.item<double>());
    }
    REQUIRE(bit_equal(group, net->parameters()));
  }
  CHECK(largest <= 1e-12);
}

inline torch::optim::SGD sgd(const std::vector<at::Tensor>& parameters) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.1));
}
inline torch::optim::SGD momentum(const std::vector<at::Tensor>& parameters) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01).nesterov(true));
}
inline torch::optim::AdamW adamw(const std::vector<at::Tensor>& parameters) {
  return torch::optim::AdamW(parameters, torch::optim::AdamWOptions(0.01));
}

}  // namespace gradient_testing
