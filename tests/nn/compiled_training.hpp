// SPDX-License-Identifier: Apache-2.0
// Training of the compiled MLP on one rank by hand, and on the ranks of an Accelerator.
#pragma once

#include "tests/nn/compiled_support.hpp"
//
#include <algorithm>

#include "accelerate/accelerate.hpp"

namespace compiled_testing {

using Values = std::vector<at::Tensor>;

inline constexpr int64_t kTrainingSteps = 5;

inline Values values_of(const torch::nn::Module& net) {
  Values copies;
  for (const at::Tensor& parameter : net.parameters()) copies.push_back(parameter.detach().clone());
  return copies;
}

inline double largest_difference(const Values& left, const Values& right) {
  double worst = 0;
  REQUIRE(left.size() == right.size());
  for (size_t i = 0; i < left.size(); ++i) worst = std::max(worst, difference(left[i], right[i]));
  return worst;
}

/// Part of the batch of a step, [4, 6]: that of one rank, or one micro-batch.
inline at::Tensor part_of_batch(int64_t step, int64_t part) {
  return torch::arange(24, torch::kDouble).add(100 * step + 50 * part).reshape({4, 6}).sin();
}

inline torch::optim::AdamW adamw_of(CompiledModule& net) {
  return torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(1e-2));
}

/// Values after training on one rank that accumulates all parts of each batch.
inline Values train_by_hand(int64_t parts) {
  auto net = compiled_mlp();
  auto adamw = adamw_of(net);
  for (int64_t step = 0; step < kTrainingSteps; ++step) {
    adamw.zero_grad();
    for (int64_t part = 0; part < parts; ++part) {
      (net->forward(part_of_batch(step, part)).square().mean() / parts).backward();
    }
    adamw.step();
  }
  return values_of(*net);
}

/// Values after training on the ranks of the Accelerator, each with its own part of the batches.
inline Values train_on_ranks(accelerate::Accelerator& accelerator, CompiledModule net) {
  auto adamw = adamw_of(net);
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  for (int64_t step = 0; step < kTrainingSteps; ++step) {
    optimizer.zero_grad();
    accelerator.backward(model(part_of_batch(step, accelerator.process_index())).square().mean());
    optimizer.step();
  }
  const auto whole = accelerator.summon_full_params(model);
  return values_of(*net);
}

}  // namespace compiled_testing
