// SPDX-License-Identifier: Apache-2.0
// Context parallelism together with tensor parallelism, pipeline stages and sharding in one mesh.
#include "tests/context_parallel/training.hpp"
//
#include <limits>

#include "accelerate/pipeline/pipeline.hpp"
#include "tests/checkpoint/folder.hpp"

using namespace context_parallel_testing;
using accelerate::comm::run_threads;

namespace {

torch::nn::Sequential causal_layers(const ModelGroups& groups) {
  return seeded([&] {
    torch::nn::Sequential layers(CausalBlock{groups}, CausalBlock{groups}, torch::nn::Linear{kWidth, 3});
    layers->to(at::kDouble);
    return layers;
  });
}

accelerate::data::Loader vectors(int64_t batch_size) {
  return accelerate::data::from_tensors(numbers({24, kTokens, kWidth}, 3), numbers({24, kTokens, 3}, 4),
                                        {.batch_size = batch_size, .shuffle = true, .seed = 7});
}

}  // namespace

TEST_CASE("context parallelism combines with tensor parallelism, data parallelism and sharding") {
  using enum ShardingStrategy;
  const std::vector<Mesh> all{{{.tp_size = 2, .cp_size = 2}},
                              {{.dp_shard_size = 2, .tp_size = 2, .cp_size = 2}, full_shard},
                              {{.dp_replicate_size = 2, .dp_shard_size = 2, .cp_size = 2}, full_shard},
                              {{.dp_replicate_size = 2, .tp_size = 2, .cp_size = 2}, shard_grad_op},
                              {{.dp_replicate_size = 2, .tp_size = 2, .cp_size = 2}}};
  for (const Mesh& mesh : all) {
    CAPTURE(mesh.text());
    run_threads(mesh.sizes.total_size(), [&](const Group& world) {
      const testing::SharedFolder folder(world);
      Accelerator one = alone();
      ContextTraining expected(one);
      const auto before = expected.epochs(1);
      Accelerator accelerator = on_mesh(world, mesh);
      ContextTraining training(accelerator);
      CHECK(close(training.epochs(1), before));
      accelerator.check_synchronized(std::get<0>(training.objects));
      accelerator.save_state(folder.path / "state");
      const auto after = expected.epochs(1);
      CHECK(close(training.epochs(1), after));
      training.check_same_state(expected.module);
      if (world.rank() == 0) {
        Accelerator single = alone();
        ContextTraining continued(single, /*seed=*/12);
        single.load_state(folder.path / "state");
        CHECK(close(continued.epochs(1), after));
      }
      world.barrier();
    });
  }
}

TEST_CASE(
    "stages of a pipeline with context parallel attention, also sharded ones, train and resume like one process") {
  using enum ShardingStrategy;
  for (const Mesh& mesh : {Mesh{{.cp_size = 2, .pp_size = 2}},
                           {{.dp_replicate_size = 2, .cp_size = 2, .pp_size = 2}},
                           {{.cp_size = 2, .pp_size = 2}, full_shard},
                           {{.dp_shard_size = 2, .cp_size = 2, .pp_size = 2}, full_shard},
                           {{.dp_shard_size = 2, .cp_size = 2, .pp_size = 2}, shard_optim_op}}) {
    CAPTURE(mesh.text());
    run_threads(mesh.sizes.total_size(), [&](const Group& world) {
      const testing::SharedFolder folder(world);
      const auto loss_function = [](const at::Tensor& output, const at::Tensor& target) {
        return torch::mse_loss(output, target);
      };
      const auto options = torch::optim::AdamWOptions(1e-2);
      Accelerator one = alone();
      auto stock = causal_layers({});
      auto [whole, whole_optimizer, whole_loader] =
          one.prepare(stock, torch::optim::AdamW(stock->parameters(), options), vectors(8));
      std::vector<double> norms, expected;
      for (auto& [x, y] : whole_loader) {
        whole_optimizer.zero_grad();
        one.backward(loss_function(whole(x), y));
        expected.push_back(one.clip_grad_norm_(whole, 0.05).item<double>());
        whole_optimizer.step();
      }
      Accelerator accelerator = on_mesh(world, mesh);
      accelerate::nn::Pipeline stages(accelerator.pipeline_parallel_group(), causal_layers(groups_of(accelerator)),
                                      {.micro_batches = 2});
      torch::optim::AdamW adam(stages.parameters(), options);
      auto [model, optimizer, loader] =
          accelerator.prepare(stages, adam, vectors(8 / accelerator.data_parallel_group().size()));
      for (auto& batch : loader) {
        const auto [x, y] = accelerator.context_parallel_split(batch, 1);
        optimizer.zero_grad();
        std::ignore = model->train_step(x, y, loss_function);
        norms.push_back(accelerator.clip_grad_norm_(model, 0.05).template item<double>());
        optimizer.step();
      }
      CHECK(norms.size() == 3);
      CHECK(close(norms, expected));
      const auto dict = Accelerator::get_state_dict(model);
      CHECK(dict.is_empty() == (world.rank() != 0));
      for (const auto& item : dict) CHECK(close(item.value(), stock->named_parameters()[item.key()]));
      accelerator.save_state(folder.path / "state");
      if (world.rank() == 0) {
        Accelerator single = alone();
        auto layers = causal_layers({});
        layers->to(at::kFloat);
        layers->to(at::kDouble);
        auto loaded = single.prepare(layers, torch::optim::AdamW(layers->parameters(), options), vectors(8));
        single.load_state(folder.path / "state");
        for (const auto& item : layers->named_parameters()) {
          CHECK(close(item.value(), stock->named_parameters()[item.key()]));
        }
      }
      world.barrier();
    });
  }
}

TEST_CASE("with fp16 the ranks of a context parallel group skip a step together") {
  run_threads(2, [](const Group& world) {
    Accelerator accelerator(
        world, {.cpu = true, .mixed_precision = accelerate::Precision::fp16, .parallelism_config = {{.cp_size = 2}}});
    auto block = seeded([&] { return CausalBlock(groups_of(accelerator)); });
    block->to(at::kFloat);
    auto [model, optimizer] = accelerator.prepare(block, torch::optim::SGD(block->parameters(), 0.1));
    for (const bool overflows : {true, false}) {
      optimizer.zero_grad();
      const at::Tensor x = accelerator.context_parallel_split(numbers({2, kTokens, kWidth}, 1, at::kFloat), 1);
      const double factor = overflows && world.rank() == 1 ? std::numeric_limits<double>::infinity() : 1;
      accelerator.backward(model(x).mean() * factor);
      optimizer.step();
      CHECK(accelerator.optimizer_step_was_skipped() == overflows);
    }
    accelerator.check_synchronized(model);
  });
}

TEST_CASE("bfloat16 training on context parallel ranks is that of one process up to rounding") {
  run_threads(2, [](const Group& world) {
    const auto losses_of = [](Accelerator& accelerator) {
      auto block = seeded([&] { return CausalBlock(groups_of(accelerator)); });
      block->to(at::kFloat);
      auto [model, optimizer] = accelerator.prepare(block, torch::optim::SGD(block->parameters(), 0.1));
      const at::Tensor x = accelerator.context_parallel_split(numbers({2, kTokens, kWidth}, 1, at::kFloat), 1);
      std::vector<double> losses;
      for (int step = 0; step < 5; ++step) {
        optimizer.zero_grad();
        const at::Tensor loss = model(x).pow(2).mean();
        accelerator.backward(loss);
        optimizer.step();
        losses.push_back(accelerator.reduce(loss.detach(), "mean").template item<double>());
      }
      return torch::tensor(losses, at::kDouble);
    };
    Accelerator one(Group(), {.cpu = true, .mixed_precision = accelerate::Precision::bf16});
    Accelerator accelerator(
        world, {.cpu = true, .mixed_precision = accelerate::Precision::bf16, .parallelism_config = {{.cp_size = 2}}});
    CHECK(close(losses_of(accelerator), losses_of(one), 1e-2));
  });
}

TEST_CASE("context parallel ranks share the work of a checkpoint, which loads on one rank") {
  run_threads(2, [](const Group& world) {
    const testing::SharedFolder folder(world);
    Accelerator accelerator = on_mesh(world, {{.cp_size = 2}});
    ContextTraining training(accelerator);
    std::ignore = training.epochs(1);
    accelerator.save_state(folder.path / "state", {.share_work = true});
    const auto after = training.epochs(1);
    if (world.rank() == 0) {
      Accelerator single = alone();
      ContextTraining continued(single, /*seed=*/12);
      single.load_state(folder.path / "state");
      CHECK(close(continued.epochs(1), after));
    }
    world.barrier();
  });
}

TEST_CASE("context parallel groups with different numbers of batches join the reductions of the others") {
  run_threads(4, [](const Group& world) {
    Accelerator accelerator(
        world, {.cpu = true, .parallelism_config = {{.dp_replicate_size = 2, .cp_size = 2}}, .even_batches = false});
    auto block = seeded([&] { return CausalBlock(groups_of(accelerator)); });
    const auto rows = numbers({3, kTokens, kWidth}, 3);
    auto [model, optimizer, loader] =
        accelerator.prepare(block, torch::optim::SGD(block->parameters(), 0.1),
                            accelerate::data::from_tensors(rows, rows, {.batch_size = 1}));
    int64_t batches = 0;
    {
      auto join = accelerator.join_uneven_inputs(model);
      for (auto& batch : loader) {
        const auto [x, y] = accelerator.context_parallel_split(batch, 1);
        optimizer.zero_grad();
        accelerator.backward(torch::mse_loss(model(x), y));
        optimizer.step();
        ++batches;
      }
    }
    CHECK(batches == 2 - accelerator.data_parallel_group().rank());
    accelerator.check_synchronized(model);
  });
}
