// SPDX-License-Identifier: Apache-2.0
// Training loops of a prepared pipeline, and of the whole model in one process.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "accelerate/accelerate.hpp"
#include "accelerate/optim/ema.hpp"
#include "tests/pipeline/models.hpp"

namespace pipeline_testing {

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;

/// Returns the meshes over all ranks with 1, 2 and 4 stages, if the ranks are divisible.
inline std::vector<accelerate::ParallelismConfig> pipeline_meshes(int64_t ranks) {
  std::vector<accelerate::ParallelismConfig> all;
  for (const int64_t stages : {1, 2, 4}) {
    if (ranks % stages == 0) all.push_back({.dp_replicate_size = ranks / stages, .pp_size = stages});
  }
  return all;
}

/// Options without a device select the CPU.
inline AcceleratorOptions with_device(AcceleratorOptions options) {
  if (!options.device) options.cpu = true;
  return options;
}
inline Accelerator on_mesh(const Group& world, const accelerate::ParallelismConfig& sizes,
                           AcceleratorOptions options = {}) {
  options = with_device(std::move(options));
  options.parallelism_config = sizes;
  return {world.duplicate(), options};
}
inline Accelerator alone(AcceleratorOptions options = {}) { return {Group(), with_device(std::move(options))}; }

using Optimizer = std::unique_ptr<torch::optim::Optimizer>;
using MakeOptimizer = std::function<Optimizer(const std::vector<torch::Tensor>&)>;
inline Optimizer adamw(const std::vector<torch::Tensor>& parameters) {
  return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
}
inline Optimizer sgd(const std::vector<torch::Tensor>& parameters) {
  return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
}

struct Task {
  std::function<Sequential()> make = mlp;
  torch::Tensor inputs = waves({24, 7}, 1);
  torch::Tensor targets = waves({24, 3}, 2);
  MakeOptimizer make_optimizer = adamw;
  double max_norm = 0.05;
};

inline Task tied_task() {
  return {.make = tied_transformer,
          .inputs = torch::arange(24 * 5).mul(7).remainder(10).reshape({24, 5}),
          .targets = waves({24, 5, 10}, 0.4)};
}

/// The MLP and its rows in float32.
inline Task float_task() {
  Task task;
  task.make = [] {
    auto layers = mlp();
    layers->to(torch::kFloat);
    return layers;
  };
  task.inputs = task.inputs.to(at::kFloat);
  task.targets = task.targets.to(at::kFloat);
  return task;
}

/// SGD of the parameters that are not frozen.
inline Optimizer sgd_of_learning(const std::vector<torch::Tensor>& parameters) {
  std::vector<torch::Tensor> learning;
  for (const auto& each : parameters) {
    if (each.requires_grad()) learning.push_back(each);
  }
  return sgd(learning);
}

/// The total batch has 8 rows on every mesh.
inline accelerate::data::Loader rows_of(const Task& task, const Accelerator& accelerator) {
  const int64_t data_ranks = accelerator.data_parallel_group().size();
  return accelerate::data::from_tensors(task.inputs, task.targets,
                                        {.batch_size = 8 / data_ranks, .shuffle = true, .seed = 7});
}

/// The loop. Returns the norms before clipping.
/// \param backward  Computes the gradients of the model for a batch.
template <typename Objects, typename Backward>
std::vector<double> norms_of_epochs(Accelerator& accelerator, Objects& objects, double max_norm, int64_t count,
                                    const Backward& backward) {
  auto& [model, optimizer, loader] = objects;
  std::vector<double> norms;
  for (int64_t epoch = 0; epoch < count; ++epoch) {
    for (auto& [input, target] : loader) {
      const auto scope = accelerator.accumulate(model);
      optimizer.zero_grad();
      backward(model, input, target);
      norms.push_back(accelerator.clip_grad_norm_(model, max_norm).template item<double>());
      optimizer.step();
    }
  }
  return norms;
}

/// Trains the whole model in one process. epochs() returns the norms before clipping.
struct WholeTraining {
  WholeTraining(Accelerator& of, const Task& task)
      : accelerator(of),
        layers(task.make()),
        own_optimizer(task.make_optimizer(parameters_of(*layers))),
        objects(accelerator.prepare(layers, *own_optimizer, rows_of(task, accelerator))),
        max_norm(task.max_norm) {}

  std::vector<double> epochs(int64_t count) {
    return norms_of_epochs(accelerator, objects, max_norm, count, [&](auto& model, auto& input, auto& target) {
      accelerator.backward(squared_error(model(input), target));
    });
  }

  Accelerator& accelerator;
  Sequential layers;
  Optimizer own_optimizer;
  decltype(std::declval<Accelerator&>().prepare(std::declval<Sequential&>(), std::declval<torch::optim::Optimizer&>(),
                                                std::declval<accelerate::data::Loader>())) objects;
  double max_norm;
};

/// Trains a prepared pipeline. epochs() returns the norms before clipping.
struct PipelineTraining {
  /// One stage or more on each rank of the mesh.
  PipelineTraining(Accelerator& of, const Task& task, const PipelineOptions& options = {.micro_batches = 2})
      : PipelineTraining(of, task, std::make_shared<Pipeline>(of.pipeline_parallel_group(), task.make(), options)) {}
  PipelineTraining(Accelerator& of, const Task& task, std::shared_ptr<Pipeline> of_task)
      : accelerator(of),
        pipeline(std::move(of_task)),
        own_optimizer(task.make_optimizer(parameters_of(*pipeline))),
        objects(accelerator.prepare(pipeline, *own_optimizer, rows_of(task, accelerator))),
        max_norm(task.max_norm) {}

  std::vector<double> epochs(int64_t count) {
    return norms_of_epochs(accelerator, objects, max_norm, count, [&](auto& model, auto& input, auto& target) {
      model->train_step(input, target, squared_error);
    });
  }

  Accelerator& accelerator;
  std::shared_ptr<Pipeline> pipeline;
  Optimizer own_optimizer;
  decltype(std::declval<Accelerator&>().prepare(std::declval<std::shared_ptr<Pipeline>&>(),
                                                std::declval<torch::optim::Optimizer&>(),
                                                std::declval<accelerate::data::Loader>())) objects;
  double max_norm;
};

inline double largest_difference(const std::vector<double>& seen, const std::vector<double>& expected) {
  if (seen.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (size_t i = 0; i < seen.size(); ++i) {
    const double difference = std::abs(seen[i] - expected[i]);
    largest = std::max(largest, std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference);
  }
  return largest;
}

}  // namespace pipeline_testing
