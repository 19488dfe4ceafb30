// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads, each with an Accelerator, and their trainings.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "accelerate/accelerate.hpp"
#include "tests/sharding/models.hpp"

namespace sharding_testing {

inline void with_ranks(int64_t ranks, const accelerate::AcceleratorOptions& options,
                       const std::function<void(accelerate::Accelerator&)>& run) {
  accelerate::simulate(ranks, [&] {
    accelerate::Accelerator accelerator(options);
    run(accelerator);
  });
}

/// A model and its optimizer that are prepared by one Accelerator.
struct PreparedTraining {
  PreparedTraining(accelerate::Accelerator& by, const ModelCase& of, const OptimizerCase& optimizer_case)
      : accelerator(by),
        inputs(of.inputs),
        net(of.make()),
        own(optimizer_case.make(once(net->parameters()))),
        model(accelerator.prepare(net)),
        optimizer(accelerator.prepare(*own)) {}

  /// \param after_step  Called after each step, if set.
  void steps(int64_t from, int64_t to, const std::function<void()>& after_step = {}) {
    for (int64_t i = from; i < to; ++i) {
      const auto batch = inputs(i);
      const int64_t rows = batch.size(0) / accelerator.num_processes();
      optimizer.zero_grad();
      accelerator.backward(loss_of(model(batch.narrow(0, accelerator.process_index() * rows, rows))));
      optimizer.step();
      if (after_step) after_step();
    }
  }
  /// Whole parameters. Collective.
  [[nodiscard]] std::vector<torch::Tensor> values() const {
    const auto whole = accelerate::Accelerator::summon_full_params(model);
    std::vector<torch::Tensor> list;
    for (const auto& parameter : net->parameters()) list.push_back(parameter.detach().clone());
    return list;
  }

  accelerate::Accelerator& accelerator;
  std::function<torch::Tensor(int64_t)> inputs;
  std::shared_ptr<AnyNet> net;
  std::unique_ptr<torch::optim::Optimizer> own;
  decltype(accelerator.prepare(net)) model;
  decltype(accelerator.prepare(*own)) optimizer;
};

}  // namespace sharding_testing
