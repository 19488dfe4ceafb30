// SPDX-License-Identifier: Apache-2.0
// Tensor parallel layers in the stages of a prepared pipeline, with and without data parallel ranks.
#include "tests/tensor_parallel/support.hpp"
//
#include <functional>
#include <memory>
#include <vector>

#include "accelerate/accelerate.hpp"
#include "accelerate/pipeline/pipeline.hpp"
#include "tests/checkpoint/folder.hpp"
#include "tests/pipeline/prepared_training.hpp"
#include "tests/tensor_parallel/mesh_training.hpp"

namespace {

using accelerate::comm::run_threads;
using namespace mesh_testing;
using pipeline_testing::PipelineTraining;
using pipeline_testing::Task;
using pipeline_testing::WholeTraining;
using torch::nn::Sequential;

template <typename Mlp, typename... Arguments>
Sequential mlp_layers(const Arguments&... arguments) {
  return seeded([&] {
    Sequential layers(Mlp(arguments...), torch::nn::Linear(5, 6), torch::nn::Tanh(), Mlp(arguments...));
    layers->to(at::kDouble);
    return layers;
  });
}

at::Tensor error_of(const at::Tensor& output, const at::Tensor& target) { return torch::mse_loss(output, target); }

Task task_of(const std::function<Sequential()>& make) {
  return {.make = make,
          .inputs = numbers({24, 6}, 3),
          .targets = numbers({24, 5}, 4),
          .make_optimizer = [](const std::vector<at::Tensor>& parameters) {
            return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-2));
          }};
}

WholeTraining stock_layers(Accelerator& accelerator) { return {accelerator, task_of(mlp_layers<StockMlp>)}; }
PipelineTraining stages_of_split_layers(Accelerator& accelerator) {
  return {accelerator, task_of([&] { return mlp_layers<SplitMlp>(accelerator.tensor_parallel_group()); })};
}

TEST_CASE("tensor parallel layers in pipeline stages, also sharded ones, train and resume like one process") {
  const ParallelismConfig sharded{.dp_shard_size = 2, .tp_size = 2, .pp_size = 2};
  for (const Mesh& mesh : {Mesh{{.tp_size = 2, .pp_size = 2}},
                           {{.dp_replicate_size = 2, .tp_size = 2, .pp_size = 2}},
                           {sharded, ShardingStrategy::shard_optim_op},
                           {sharded, ShardingStrategy::shard_grad_op},
                           {sharded, ShardingStrategy::full_shard}}) {
    CAPTURE(mesh.text());
    run_threads(mesh.sizes.total_size(), [&](const Group& world) {
      Accelerator one = alone();
      auto stock = stock_layers(one);
      const auto before = stock.epochs(2);
      const testing::SharedFolder folder(world);
      if (world.rank() == 0) one.save_state(folder.path / "whole");
      world.barrier();
      const auto after = stock.epochs(2);
      Accelerator accelerator = on_mesh(world, mesh);
      auto training = stages_of_split_layers(accelerator);
      CHECK(close(training.epochs(2), before));
      accelerator.save_state(folder.path / "stages");
      CHECK(close(training.epochs(2), after));
      for (const char* name : {"whole", "stages"}) {
        Accelerator again = on_mesh(world, mesh);
        auto resumed = stages_of_split_layers(again);
        again.load_state(folder.path / name);
        CHECK(close(resumed.epochs(2), after));
        Accelerator single = alone();
        auto continued = stock_layers(single);
        single.load_state(folder.path / name);
        CHECK(close(continued.epochs(2), after));
      }
      const auto& model = std::get<0>(training.objects);
      const auto dict = Accelerator::get_state_dict(model);
      accelerator.save_model(model, folder.path / "model");
      const auto expected = stock.layers->named_parameters();
      CHECK(dict.size() == (world.rank() == 0 ? expected.size() : 0));
      for (const auto& item : dict) CHECK(close(item.value(), expected[item.key()]));
      auto loaded = stock_layers(one);
      CHECK(one.load_model(std::get<0>(loaded.objects), folder.path / "model") == accelerate::LoadedModel{});
      for (const auto& item : loaded.layers->named_parameters()) CHECK(close(item.value(), expected[item.key()]));
      world.barrier();
    });
  }
}

TEST_CASE("norms are those of one process if only one stage has tensor parallel layers") {
  run_threads(4, [](const Group& world) {
    const auto layers_of = [](const auto& first) {
      return seeded([&] {
        Sequential layers(first(), torch::nn::Linear(5, 5), torch::nn::Tanh());
        layers->to(at::kDouble);
        return layers;
      });
    };
    const auto x = numbers({4, 6}, 3), y = numbers({4, 5}, 4);
    auto stock = layers_of([] { return StockMlp(); });
    error_of(stock->forward(x), y).backward();
    const double expected = torch::nn::utils::clip_grad_norm_(stock->parameters(), 0.1);
    for (const std::vector<int64_t>& layers_per_stage : {std::vector<int64_t>{1, 2}, {2, 1}}) {
      Accelerator accelerator = on_mesh(world, {{.tp_size = 2, .pp_size = 2}});
      const auto net = std::make_shared<Pipeline>(
          accelerator.pipeline_parallel_group(),
          layers_of([&] { return SplitMlp(accelerator.tensor_parallel_group()); }),
          accelerate::PipelineOptions{.micro_batches = 2, .layers_per_stage = layers_per_stage});
      const auto model = accelerator.prepare(net);
      model->train_step(x, y, error_of);
      CHECK(accelerator.clip_grad_norm_(model, 0.1).item<double>() == doctest::Approx(expected).epsilon(1e-12));
      const auto gradients = stock->named_parameters();
      for (const auto& item : net->named_parameters()) {
        if (item.key().starts_with("1.")) CHECK(close(item.value().grad(), gradients[item.key()].grad()));
      }
    }
  });
}

}  // namespace
