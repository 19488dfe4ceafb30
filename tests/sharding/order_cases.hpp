// SPDX-License-Identifier: Apache-2.0
// Ranks that use the units of a sharded model in different orders. The including file defines with_order_ranks().
#pragma once

#include <cstdlib>
#include <memory>
#include <string>

#include "accelerate/accelerate.hpp"
#include "tests/refusal.hpp"
#include "tests/sharding/models.hpp"

namespace sharding_testing {

using accelerate::Accelerator;

/// Two layers of equal size. Rank 1 uses the second one first.
inline std::shared_ptr<AnyNet> net_in_order_of(int64_t rank) {
  torch::nn::ModuleList layers(torch::nn::Linear(7, 7), torch::nn::Linear(7, 7));
  auto net = std::make_shared<AnyNet>([layers, rank](const torch::Tensor& x) mutable {
    const auto first = layers->ptr<torch::nn::LinearImpl>(rank == 1 ? 1 : 0),
               second = layers->ptr<torch::nn::LinearImpl>(rank == 1 ? 0 : 1);
    return second->forward(first->forward(x));
  });
  net->register_module("layers", layers);
  net->to(torch::kDouble);
  fill(*net);
  return net;
}

/// LibTorch's all-gather over the network, in groups of more than four ranks, compares nothing.
inline bool compares_operations(const accelerate::comm::Group& group) {
  const char* shares_memory = std::getenv("ACCELERATE_GLOO_SHARED_MEMORY");
  return group.backend() != "gloo" || shares_memory == nullptr || group.size() <= 4;
}

inline void check_ends(const std::string& text, const std::string& end) { CHECK_MESSAGE(text.ends_with(end), text); }

TEST_CASE("ranks that use units in different orders get an error, in training and in evaluation") {
  with_order_ranks([](const accelerate::comm::Group& world) {
    if (world.size() == 1) return;
    for (const bool trains : {true, false}) {
      CAPTURE(trains);
      Accelerator accelerator(
          world.duplicate(),
          {.cpu = true, .sharding = accelerate::ShardingStrategy::full_shard, .fsdp_plugin = {.min_num_params = 20}});
      const auto net = net_in_order_of(world.rank());
      torch::optim::SGD sgd(net->parameters(), 1.0);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      const torch::AutoGradMode gradients(trains);
      const auto forward = [&, &own = model] { return own(waves({5, 7}, 1)); };
      if (compares_operations(world)) {
        const std::string text = testing::refusal([&] { std::ignore = forward(); });
        const int64_t own = world.rank() == 1 ? 1 : 0, other = world.rank() <= 1 ? 1 - world.rank() : 1;
        CHECK_MESSAGE(text.find("forward: unit " + std::to_string(own) + " (layers.") != std::string::npos, text);
        check_ends(text, "this rank transfers item " + std::to_string(own) + ", rank " + std::to_string(other) +
                             " transfers item " + std::to_string(1 - own) +
                             "; all ranks must call the same operations in the same order.");
      } else if (trains) {
        accelerator.backward(loss_of(forward()));
        check_ends(
            testing::refusal([&, &step = optimizer] { step.step(); }),
            "optimizer.step: the ranks used the units of the sharded model in different orders, so they computed "
            "with each other's values, and no optimizer stepped: after the same collectives the next collective "
            "of rank 0 was 'gather 0', that of rank 1 'gather 1' (sharding_plan() lists the units); use the "
            "parameters in one order on all ranks");
        check_ends(testing::refusal([&, &step = optimizer] { step.step(); }), "; zero them before the next backward");
      }
    }
  });
}

}  // namespace sharding_testing
