// SPDX-License-Identifier: Apache-2.0
// Prepared pipelines with sharding on 4 and 8 thread ranks, and what each rank keeps.
#include "tests/testing.hpp"
//
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

#include "accelerate/comm/group.hpp"
#include "tests/refusal.hpp"

namespace pipeline_testing {
namespace {

void with_sharded_ranks(const std::function<void(const accelerate::comm::Group&)>& check) {
  for (const int64_t ranks : {4, 8}) {
    accelerate::comm::run_threads(ranks, check, std::chrono::seconds(60));
  }
}

}  // namespace
}  // namespace pipeline_testing

#include "tests/pipeline/sharded_cases.hpp"

namespace pipeline_testing {
namespace {

using accelerate::comm::run_threads;
using enum ShardingStrategy;

const ShardedMesh kTwoByTwo{{.dp_shard_size = 2, .pp_size = 2}, full_shard};

}  // namespace

TEST_CASE("a rank of a sharded stage keeps its part of its stage") {
  run_threads(4, [](const Group& world) {
    Accelerator accelerator = on_sharded_mesh(world, kTwoByTwo);
    PipelineTraining training(accelerator, {}, {.micro_batches = 2, .layers_per_stage = {3, 6}});
    int64_t elements = 0;
    for (const auto& parameter : training.pipeline->parameters()) elements += parameter.numel();
    const auto plan = accelerator.sharding_plan(std::get<0>(training.objects));
    CAPTURE(plan);
    CHECK(plan.find(fmt::format(" units, {} elements on 2 ranks, ", elements)) != std::string::npos);
    training.epochs(1);
    for (const auto& parameter : training.pipeline->parameters()) {
      CHECK_THROWS_AS(std::ignore = parameter.data_ptr(), c10::Error);
      CHECK_FALSE(parameter.grad().defined());
    }
  });
}

TEST_CASE("with full_shard data parallel ranks need the same number of micro-batches, in training and evaluation") {
  run_threads(
      4,
      [](const Group& world) {
        const int64_t rows = world.rank() % 2 == 0 ? 2 : 1;
        const std::string text =
            "Pipeline: the batch of data parallel rank 0 has 2 micro-batches, that of rank 1 has 1, and full_shard "
            "needs the same number on all; give each rank at least as many rows as PipelineOptions::micro_batches";
        for (const bool trains : {true, false}) {
          Accelerator accelerator = on_sharded_mesh(world, kTwoByTwo);
          PipelineTraining training(accelerator, {});
          auto& model = std::get<0>(training.objects);
          model.train(trains);
          CHECK(testing::refusal_of_any_rank([&] {
                  trains ? std::ignore = model->train_step(waves({rows, 7}, 1), waves({rows, 3}, 2), squared_error)
                         : std::ignore = model(waves({rows, 7}, 1));
                }) == text);
        }
        Accelerator accelerator = on_sharded_mesh(world, {kTwoByTwo.sizes, shard_grad_op});
        PipelineTraining training(accelerator, {});
        auto& [model, optimizer, loader] = training.objects;
        model->train_step(waves({rows, 7}, 1), waves({rows, 3}, 2), squared_error);
        optimizer.step();  // reduces once, so the number of micro-batches may differ
        accelerator.check_synchronized(model);
      },
      std::chrono::seconds(20));
}

TEST_CASE("clip_grad_norm_ of a sharded Pipeline names that of the Accelerator") {
  run_threads(4, [](const Group& world) {
    Accelerator accelerator = on_sharded_mesh(world, kTwoByTwo);
    PipelineTraining training(accelerator, {});
    CHECK(testing::refusal_of_any_rank([&] { training.pipeline->clip_grad_norm_(1.0); }) ==
          "Pipeline.clip_grad_norm_: the Pipeline is prepared with sharding full_shard, so that each rank has parts of "
          "its gradients; call accelerator.clip_grad_norm_(model, max_norm)");
  });
}

TEST_CASE("a sharded stage without trainable parameters steps with the other stages") {
  run_threads(4, [](const Group& world) {
    const auto make = [] {
      auto layers = filled(Sequential(torch::nn::Linear(7, 5), torch::nn::Linear(5, 3)));
      for (auto& parameter : (*layers)[1]->parameters()) parameter.requires_grad_(false);
      return layers;
    };
    const Task task{.make = make, .make_optimizer = sgd_of_learning};
    Accelerator one = alone();
    WholeTraining whole(one, task);
    const auto expected = whole.epochs(2);
    for (const auto sharding : {shard_optim_op, shard_grad_op, full_shard}) {
      Accelerator accelerator = on_sharded_mesh(world, {kTwoByTwo.sizes, sharding});
      PipelineTraining training(accelerator, task);
      CHECK(largest_difference(training.epochs(2), expected) < 1e-12);
      CHECK(difference_of_whole(training, whole.layers) < 1e-12);
      const testing::SharedFolder folder(world);
      accelerator.save_state(folder.path / "c");
      accelerator.load_state(folder.path / "c");
    }
  });
}

TEST_CASE("a parameter that needs a gradient only after prepare() is an error of the step") {
  for (const auto sharding : {shard_grad_op, full_shard}) {
    for (const bool is_tied : {false, true}) {
      run_threads(4, [&](const Group& world) {
        Accelerator accelerator = on_sharded_mesh(world, {kTwoByTwo.sizes, sharding});
        const auto make = [&] {
          auto layers = is_tied ? tied_transformer() : mlp();
          layers->named_parameters()["0.weight"].requires_grad_(false);
          return layers;
        };
        const Task task{.make = make, .make_optimizer = sgd};
        PipelineTraining training(accelerator, task);
        auto& [model, optimizer, loader] = training.objects;
        for (auto& item : training.pipeline->named_parameters()) {
          if (item.key() == "0.weight" || (is_tied && item.key() == "3.weight")) item.value().requires_grad_(true);
        }
        const Task data = is_tied ? tied_task() : Task{};
        const auto text = testing::refusal_of_any_rank([&, &own = model, &step = optimizer] {
          own->train_step(data.inputs.narrow(0, 0, 4), data.targets.narrow(0, 0, 4), squared_error);
          step.step();
        });
        const bool has_it = is_tied || accelerator.pipeline_parallel_rank() == 0;
        CHECK_MESSAGE((text.find("requires_grad") != std::string::npos) == has_it, text);
      });
    }
  }
}

TEST_CASE("copies of a float32 weight stay equal if a stage has no other gradients, with norms that clip") {
  run_threads(4, [](const Group& world) {
    Task task = tied_task();
    task.make = [] {
      auto layers = tied_transformer();
      layers->to(at::kFloat);
      return layers;
    };
    task.targets = task.targets.to(at::kFloat);
    for (const auto sharding : {no_shard, shard_optim_op, shard_grad_op, full_shard}) {
      ShardedMesh mesh{kTwoByTwo.sizes, sharding};
      if (sharding == no_shard) mesh.sizes = {.dp_replicate_size = 2, .pp_size = 2};
      CAPTURE(mesh.text());
      Accelerator accelerator = on_sharded_mesh(world, mesh);
      PipelineTraining training(accelerator, task, {.micro_batches = 2, .layers_per_stage = {3, 1}});
      training.epochs(2);
      const auto weights = Accelerator::get_state_dict(std::get<0>(training.objects));
      if (world.rank() == 0) CHECK(weights["0.weight"].equal(weights["3.weight"]));
    }
  });
}

TEST_CASE("layers of init_empty_weights() become sharded stages with the values of eager construction") {
  std::mutex one_at_a_time;  // thread ranks share the generator
  run_threads(4, [&](const Group& world) {
    const auto build = [] { return Sequential(torch::nn::Linear(7, 5), torch::nn::Tanh(), torch::nn::Linear(5, 3)); };
    for (const auto& mesh : {kTwoByTwo, ShardedMesh{.sizes = {.dp_replicate_size = 2, .pp_size = 2}}}) {
      CAPTURE(mesh.text());
      Accelerator accelerator = on_sharded_mesh(world, mesh);
      Sequential expected, deferred;
      {
        const std::lock_guard lock(one_at_a_time);
        torch::manual_seed(3);
        expected = build();
        torch::manual_seed(3);
        deferred = accelerate::init_empty_weights(build);
      }
      const auto net =
          std::make_shared<Pipeline>(accelerator.pipeline_parallel_group(), std::move(deferred), PipelineOptions{});
      const auto model = accelerator.prepare(net);
      const auto scope = Accelerator::summon_full_params(model);
      CHECK(difference(*net, expected) == 0);
    }
  });
}

}  // namespace pipeline_testing
