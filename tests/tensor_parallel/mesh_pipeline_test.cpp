// SPDX-License-Identifier: Apache-2.0
// Tensor parallel layers in the stages of a prepared pipeline, with and without data parallel ranks.
#include "tests/tensor_parallel/support.hpp"
//
#include <memory>
#include <vector>

#include "accelerate/accelerate.hpp"
#include "accelerate/pipeline/pipeline.hpp"
#include "tests/checkpoint/folder.hpp"
#include "tests/tensor_parallel/mesh_training.hpp"

namespace {

using accelerate::comm::run_threads;
using namespace mesh_testing;
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

struct StagesOfSplitLayers {
  explicit StagesOfSplitLayers(Accelerator& of)
      : accelerator(of),
        pipeline(std::make_shared<Pipeline>(accelerator.pipeline_parallel_group(),
                                            mlp_layers<SplitMlp>(accelerator.tensor_parallel_group()),
                                            accelerate::PipelineOptions{.micro_batches = 2})),
        adamw(pipeline->parameters(), torch::optim::AdamWOptions(1e-2)),
        objects(accelerator.prepare(pipeline, adamw, samples(8 / accelerator.data_parallel_group().size()))) {}

  std::vector<double> epochs(int64_t count) {
    auto& [model, optimizer, loader] = objects;
    std::vector<double> norms;
    for (int64_t epoch = 0; epoch < count; ++epoch) {
      for (auto& [x, y] : loader) {
        optimizer.zero_grad();
        model->train_step(x, y, error_of);
        norms.push_back(accelerator.clip_grad_norm_(model, 0.05).template item<double>());
        optimizer.step();
      }
    }
    return norms;
  }

  Accelerator& accelerator;
  std::shared_ptr<Pipeline> pipeline;
  torch::optim::AdamW adamw;
  decltype(std::declval<Accelerator&>().prepare(std::declval<std::shared_ptr<Pipeline>&>(),
                                                std::declval<torch::optim::AdamW&>(), samples(1))) objects;
};

struct StockLayers {
  explicit StockLayers(Accelerator& of)
      : accelerator(of),
        layers(mlp_layers<StockMlp>()),
        adamw(layers->parameters(), torch::optim::AdamWOptions(1e-2)),
        objects(accelerator.prepare(layers, adamw, samples(8))) {}

  std::vector<double> epochs(int64_t count) {
    auto& [model, optimizer, loader] = objects;
    std::vector<double> norms;
    for (int64_t epoch = 0; epoch < count; ++epoch) {
      for (auto& [x, y] : loader) {
        optimizer.zero_grad();
        accelerator.backward(error_of(model(x), y));
        norms.push_back(accelerator.clip_grad_norm_(model, 0.05).template item<double>());
        optimizer.step();
      }
    }
    return norms;
  }

  Accelerator& accelerator;
  Sequential layers;
  torch::optim::AdamW adamw;
  decltype(std::declval<Accelerator&>().prepare(std::declval<Sequential&>(), std::declval<torch::optim::AdamW&>(),
                                                samples(1))) objects;
};

TEST_CASE("tensor parallel layers in pipeline stages train and resume like one process") {
  for (const ParallelismConfig& sizes : {ParallelismConfig{.tp_size = 2, .pp_size = 2},
                                         ParallelismConfig{.dp_replicate_size = 2, .tp_size = 2, .pp_size = 2}}) {
    CAPTURE(sizes.text());
    run_threads(sizes.total_size(), [&](const Group& world) {
      Accelerator one = alone();
      StockLayers stock(one);
      const auto before = stock.epochs(2);
      const testing::SharedFolder folder(world);
      if (world.rank() == 0) one.save_state(folder.path / "whole");
      world.barrier();
      const auto after = stock.epochs(2);
      Accelerator accelerator = on_mesh(world, {sizes});
      StagesOfSplitLayers training(accelerator);
      CHECK(close(training.epochs(2), before));
      accelerator.save_state(folder.path / "stages");
      CHECK(close(training.epochs(2), after));
      for (const char* name : {"whole", "stages"}) {
        Accelerator again = on_mesh(world, {sizes});
        StagesOfSplitLayers resumed(again);
        again.load_state(folder.path / name);
        CHECK(close(resumed.epochs(2), after));
        Accelerator single = alone();
        StockLayers continued(single);
        single.load_state(folder.path / name);
        CHECK(close(continued.epochs(2), after));
      }
      const auto& model = std::get<0>(training.objects);
      const auto dict = Accelerator::get_state_dict(model);
      accelerator.save_model(model, folder.path / "model");
      const auto expected = stock.layers->named_parameters();
      CHECK(dict.size() == (world.rank() == 0 ? expected.size() : 0));
      for (const auto& item : dict) CHECK(close(item.value(), expected[item.key()]));
      StockLayers loaded(one);
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
