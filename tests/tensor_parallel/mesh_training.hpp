// SPDX-License-Identifier: Apache-2.0
// Meshes, and the training of one process on each of them.
#pragma once

#include "tests/tensor_parallel/support.hpp"
//
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "accelerate/accelerate.hpp"

namespace mesh_testing {

using namespace tensor_parallel_testing;
using accelerate::Accelerator;
using accelerate::ParallelismConfig;
using accelerate::ShardingStrategy;

struct Mesh {
  ParallelismConfig sizes{};
  ShardingStrategy sharding = ShardingStrategy::no_shard;
  [[nodiscard]] std::string text() const {
    return fmt::format("{}, {}", sizes.text(), accelerate::sharding::strategy_name(sharding));
  }
};

/// All meshes of data and tensor parallel ranks. With both dimensions also the sharding strategies, among them hybrid
/// ones on 8 ranks.
inline std::vector<Mesh> meshes(int64_t ranks) {
  using enum ShardingStrategy;
  std::vector<Mesh> all;
  for (const int64_t tensor : {1, 2, 4}) {
    if (ranks % tensor != 0) continue;
    const int64_t data = ranks / tensor;
    all.push_back({{.dp_replicate_size = data, .tp_size = tensor}});
    if (data == 1 || tensor == 1) continue;
    for (const auto sharding : {shard_optim_op, shard_grad_op, full_shard}) {
      all.push_back({{.dp_shard_size = data, .tp_size = tensor}, sharding});
    }
    if (data < 4) continue;
    for (const auto sharding : {shard_grad_op, full_shard}) {
      all.push_back({{.dp_replicate_size = 2, .dp_shard_size = data / 2, .tp_size = tensor}, sharding});
    }
  }
  return all;
}

inline Accelerator on_mesh(const Group& world, const Mesh& mesh, const std::string& device = "cpu") {
  return Accelerator(world.duplicate(),
                     {.device = device, .parallelism_config = mesh.sizes, .sharding = mesh.sharding});
}
inline Accelerator alone(const std::string& device = "cpu") { return Accelerator(Group(), {.device = device}); }

/// Samples in an order that only the seed determines.
inline accelerate::data::Loader samples(int64_t batch_size, int64_t count = 24) {
  return accelerate::data::from_tensors(numbers({count, 6}, 3), numbers({count, 5}, 4),
                                        {.batch_size = batch_size, .shuffle = true, .seed = 7});
}

/// Prepared model, optimizer and loader of one rank. The total batch size is 8 on every mesh.
template <typename Module>
struct Training {
  Training(Accelerator& the_accelerator, Module the_module)
      : accelerator(the_accelerator),
        module(std::move(the_module)),
        stock_optimizer(module->parameters(), torch::optim::AdamWOptions(1e-2)),
        objects(accelerator.prepare(module, stock_optimizer,
                                    samples(8 / accelerator.parallelism_config().data_parallel_size()))) {}

  /// The loop of one process. Returns the norms before clipping, and the losses of all samples.
  std::vector<double> epochs(int64_t count) {
    auto& [model, optimizer, loader] = objects;
    std::vector<double> seen;
    for (int64_t epoch = 0; epoch < count; ++epoch) {
      for (auto& [x, y] : loader) {
        optimizer.zero_grad();
        const auto loss = torch::mse_loss(model(x), y);
        accelerator.backward(loss);
        seen.push_back(accelerator.clip_grad_norm_(model, 0.05).template item<double>());
        optimizer.step();
        const torch::NoGradGuard no_grad;
        const auto errors = (model(x) - y).detach().pow(2).mean(1);
        seen.push_back(accelerator.gather_for_metrics(errors).sum().template item<double>());
      }
    }
    return seen;
  }

  void check_same_state(const StockMlp& stock, double tolerance = 1e-12) {
    const auto whole = Accelerator::summon_full_params(std::get<0>(objects));
    tensor_parallel_testing::check_same_state(module, stock, tolerance);
  }

  Accelerator& accelerator;
  Module module;
  torch::optim::AdamW stock_optimizer;
  using Prepared = decltype(std::declval<Accelerator&>().prepare(std::declval<Module&>(),
                                                                 std::declval<torch::optim::AdamW&>(), samples(1)));
  Prepared objects;
};

inline Training<StockMlp> reference(Accelerator& accelerator) {
  return {accelerator, seeded([] { return StockMlp(); })};
}
inline Training<SplitMlp> split(Accelerator& accelerator, uint64_t seed = 11) {
  return {accelerator, seeded([&] { return SplitMlp(accelerator.tensor_parallel_group()); }, seed)};
}

inline bool close(const std::vector<double>& seen, const std::vector<double>& expected, double tolerance = 1e-12) {
  return tensor_parallel_testing::close(torch::tensor(seen, at::kDouble), torch::tensor(expected, at::kDouble),
                                        tolerance);
}

}  // namespace mesh_testing
