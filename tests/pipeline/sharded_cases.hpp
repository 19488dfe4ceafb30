// SPDX-License-Identifier: Apache-2.0
// Tests of prepared pipelines with sharding, on ranks of any kind. The including file defines with_sharded_ranks().
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/checkpoint/folder.hpp"
#include "tests/pipeline/prepared_training.hpp"

namespace pipeline_testing {

using accelerate::ShardingStrategy;

struct ShardedMesh {
  accelerate::ParallelismConfig sizes{};
  ShardingStrategy sharding = ShardingStrategy::no_shard;
  [[nodiscard]] std::string text() const {
    return fmt::format("{}, {}", sizes.text(), accelerate::sharding::strategy_name(sharding));
  }
};

/// All strategies on meshes with 2 stages and at least 2 data parallel ranks.
inline std::vector<ShardedMesh> sharded_meshes(int64_t ranks) {
  using enum ShardingStrategy;
  std::vector<ShardedMesh> all;
  if (ranks % 4 != 0) return all;
  for (const auto sharding : {shard_optim_op, shard_grad_op, full_shard}) {
    all.push_back({{.dp_shard_size = ranks / 2, .pp_size = 2}, sharding});
  }
  if (ranks == 4) return all;
  for (const auto sharding : {shard_grad_op, full_shard}) {
    all.push_back({{.dp_replicate_size = 2, .dp_shard_size = ranks / 4, .pp_size = 2}, sharding});
  }
  all.push_back({{.dp_shard_size = ranks / 4, .pp_size = 4}, full_shard});
  return all;
}

/// Each layer is a unit.
inline Accelerator on_sharded_mesh(const Group& world, const ShardedMesh& mesh, AcceleratorOptions options = {}) {
  options.sharding = mesh.sharding;
  if (mesh.sharding != ShardingStrategy::no_shard) options.fsdp_plugin.min_num_params = 1;
  return on_mesh(world, mesh.sizes, std::move(options));
}

/// Largest difference of this rank's stages from the same layers of the whole model.
inline double difference_of_whole(PipelineTraining& training, const Sequential& whole) {
  const auto scope = Accelerator::summon_full_params(std::get<0>(training.objects));
  return difference(*training.pipeline, whole);
}

TEST_CASE("a sharded pipeline trains like one process, with every strategy and schedule") {
  with_sharded_ranks([](const Group& world) {
    for (const auto& make_optimizer : {adamw, sgd}) {
      const Task task{.make_optimizer = make_optimizer};
      Accelerator one = alone();
      WholeTraining whole(one, task);
      const auto expected = whole.epochs(4);
      for (const auto& mesh : sharded_meshes(world.size())) {
        for (const auto& [schedule, stages] : {std::pair(PipelineSchedule::gpipe, 1),
                                               {PipelineSchedule::one_forward_one_backward, 1},
                                               {PipelineSchedule::interleaved, 2}}) {
          CAPTURE(mesh.text());
          CAPTURE(schedule_name(schedule));
          Accelerator accelerator = on_sharded_mesh(world, mesh);
          PipelineTraining training(accelerator, task,
                                    {.schedule = schedule, .micro_batches = 2, .stages_per_rank = stages});
          CHECK(largest_difference(training.epochs(4), expected) < 1e-12);
          CHECK(difference_of_whole(training, whole.layers) < 1e-12);
          accelerator.check_synchronized(std::get<0>(training.objects));
        }
      }
    }
  });
}

TEST_CASE("a sharded weight of the first and the last stage counts once in every kind of norm") {
  with_sharded_ranks([](const Group& world) {
    const Task task = tied_task();
    Accelerator one = alone({.gradient_accumulation_steps = 2});
    WholeTraining whole(one, task);
    const auto expected = whole.epochs(3);
    for (const auto& mesh : sharded_meshes(world.size())) {
      CAPTURE(mesh.text());
      Accelerator accelerator = on_sharded_mesh(world, mesh, {.gradient_accumulation_steps = 2});
      PipelineTraining training(accelerator, task);
      const auto seen = training.epochs(3);
      for (size_t i = 1; i < seen.size(); i += 3) CHECK(std::abs(seen[i] - expected[i]) < 1e-12);  // ends of windows
      CHECK(difference_of_whole(training, whole.layers) < 1e-12);
      for (const double kind : {1.0, std::numeric_limits<double>::infinity()}) {
        one.clip_grad_norm_(std::get<0>(whole.objects), 1e9);
        const auto norm = one.clip_grad_norm_(std::get<0>(whole.objects), 1e9, kind);
        const auto own = accelerator.clip_grad_norm_(std::get<0>(training.objects), 1e9, kind, true);
        CHECK(own.item<double>() == doctest::Approx(norm.item<double>()).epsilon(1e-10));
      }
      const auto weights = Accelerator::get_state_dict(std::get<0>(training.objects));
      if (world.rank() == 0) CHECK(weights["0.weight"].equal(weights["3.weight"]));  // the copies of both stages
    }
  });
}

TEST_CASE("no_sync keeps the gradients of sharded stages until the last step, also those of a tied weight") {
  with_sharded_ranks([](const Group& world) {
    const Task task = tied_task();
    const auto first = task.inputs.narrow(0, 0, 8), second = task.inputs.narrow(0, 8, 8);
    const auto target = task.targets.narrow(0, 0, 8);
    Accelerator one = alone();
    WholeTraining whole(one, task);
    for (const auto& input : {first, second}) {
      one.backward(squared_error(std::get<0>(whole.objects)(input), target));
    }
    std::get<1>(whole.objects).step();
    for (const auto& mesh : sharded_meshes(world.size())) {
      CAPTURE(mesh.text());
      Accelerator accelerator = on_sharded_mesh(world, mesh);
      PipelineTraining training(accelerator, task);
      auto& [model, optimizer, loader] = training.objects;
      const int64_t ranks = accelerator.data_parallel_group().size(), rank = accelerator.data_parallel_group().rank();
      const auto rows = [&](const at::Tensor& all) { return all.chunk(ranks)[static_cast<size_t>(rank)]; };
      {
        const auto local = accelerator.no_sync(model);
        model->train_step(rows(first), rows(target), squared_error);
      }
      model->train_step(rows(second), rows(target), squared_error);
      optimizer.step();
      CHECK(difference_of_whole(training, whole.layers) < 1e-12);
    }
  });
}

TEST_CASE("sharded stages resume on every mesh and in one process, from either kind of files") {
  with_sharded_ranks([](const Group& world) {
    using accelerate::sharding::StateDictType;
    for (const Task& task : {Task{}, tied_task()}) {
      const testing::SharedFolder folder(world);
      Accelerator one = alone();
      WholeTraining whole(one, task);
      whole.epochs(2);
      if (world.rank() == 0) one.save_state(folder.path / "whole");
      world.barrier();
      const auto expected = whole.epochs(2);
      auto all = sharded_meshes(world.size());
      if (all.empty()) continue;
      all.push_back({.sizes = {.dp_replicate_size = world.size() / 2, .pp_size = 2}});
      all.push_back({.sizes = {.dp_shard_size = world.size()}, .sharding = ShardingStrategy::full_shard});
      for (const auto kind : {StateDictType::sharded_state_dict, StateDictType::full_state_dict}) {
        AcceleratorOptions options;
        options.fsdp_plugin.state_dict_type = kind;
        for (size_t i = 0; i < all.size(); ++i) {
          CAPTURE(all[i].text());
          const auto place = folder.path / fmt::format("{}_{}", static_cast<int>(kind), i);
          {
            Accelerator accelerator = on_sharded_mesh(world, all[i], options);
            PipelineTraining training(accelerator, task);
            accelerator.load_state(folder.path / "whole");
            accelerator.save_state(place);
            CHECK(largest_difference(training.epochs(2), expected) < 1e-12);
          }
          const auto& next = all[(i + 1) % all.size()];
          CAPTURE(next.text());
          Accelerator accelerator = on_sharded_mesh(world, next, options);
          PipelineTraining training(accelerator, task);
          accelerator.load_state(place);
          CHECK(largest_difference(training.epochs(2), expected) < 1e-12);
          CHECK(difference_of_whole(training, whole.layers) < 1e-12);
          Accelerator single = alone();
          WholeTraining continued(single, task);
          single.load_state(place);
          CHECK(largest_difference(continued.epochs(2), expected) < 1e-12);
        }
      }
      world.barrier();
    }
  });
}

TEST_CASE("save_model and get_state_dict return the whole model of sharded stages, and load_model loads it") {
  with_sharded_ranks([](const Group& world) {
    for (const Task& task : {Task{}, tied_task()}) {
      for (const auto& mesh : sharded_meshes(world.size())) {
        CAPTURE(mesh.text());
        const testing::SharedFolder folder(world);
        Accelerator accelerator = on_sharded_mesh(world, mesh);
        PipelineTraining training(accelerator, task);
        const auto& model = std::get<0>(training.objects);
        accelerator.save_model(model, folder.path);
        const auto dict = Accelerator::get_state_dict(model);
        const auto expected = task.make()->named_parameters();
        CHECK(dict.size() == (world.rank() == 0 ? expected.size() : 0));
        for (const auto& item : dict) CHECK(item.value().cpu().equal(expected[item.key()]));
        Accelerator single = alone();
        auto layers = task.make();
        for (auto& parameter : layers->parameters()) parameter.detach().zero_();
        const auto whole = single.prepare(layers);
        CHECK(single.load_model(whole, folder.path) == accelerate::LoadedModel{});
        for (const auto& item : layers->named_parameters()) CHECK(item.value().equal(expected[item.key()]));
        {
          const auto scope = Accelerator::summon_full_params(model);
          for (auto& parameter : training.pipeline->parameters()) parameter.detach().zero_();
        }
        CHECK(accelerator.load_model(model, folder.path) == accelerate::LoadedModel{});
        CHECK(difference_of_whole(training, layers) == 0);
        world.barrier();
      }
    }
  });
}

TEST_CASE("fp16 scales the loss of sharded stages, and all ranks skip a step if one part overflows") {
  with_sharded_ranks([](const Group& world) {
    const Task task = float_task();
    const AcceleratorOptions options{.mixed_precision = accelerate::Precision::fp16,
                                     .grad_scaler = {.init_scale = 256.0, .growth_interval = 1000}};
    Accelerator one = alone(options);
    WholeTraining whole(one, task);
    const auto expected = whole.epochs(2);
    for (const auto& mesh : sharded_meshes(world.size())) {
      CAPTURE(mesh.text());
      Accelerator accelerator = on_sharded_mesh(world, mesh, options);
      PipelineTraining training(accelerator, task);
      CHECK(largest_difference(training.epochs(2), expected) < 2e-3);
      CHECK(accelerator.loss_scale() == 256.0);
      auto& [model, optimizer, loader] = training.objects;
      const auto values = [&, &own = model] {
        const auto scope = Accelerator::summon_full_params(own);
        std::vector<torch::Tensor> copies;
        for (const auto& parameter : training.pipeline->parameters()) copies.push_back(parameter.detach().clone());
        return copies;
      };
      const auto before = values();
      optimizer.zero_grad();
      const auto input = torch::full({2, 7}, world.rank() == 0 ? 1e30 : 1.0, at::kFloat);
      model->train_step(input, waves({2, 3}, 1).to(at::kFloat), squared_error);
      optimizer.step();
      CHECK(optimizer.step_was_skipped());
      CHECK(accelerator.loss_scale() == 128.0);
      CHECK(largest_difference(values(), before) == 0);
    }
  });
}

TEST_CASE("sharded stages train in bf16 and pure bf16 within bf16 precision, and their masters are saved") {
  with_sharded_ranks([](const Group& world) {
    Task task = float_task();
    task.make_optimizer = sgd;
    Accelerator one = alone();
    WholeTraining whole(one, task);
    whole.epochs(4);
    AcceleratorOptions autocast, pure;
    autocast.mixed_precision = accelerate::Precision::bf16;
    pure.precision_policy = accelerate::precision::pure_bf16();
    for (const auto& options : {autocast, pure}) {
      for (const auto& mesh : sharded_meshes(world.size())) {
        if (mesh.sharding == ShardingStrategy::shard_optim_op && options.precision_policy) continue;  // not supported
        CAPTURE(mesh.text());
        const auto error = [](const torch::Tensor& output, const torch::Tensor& expected) {
          return squared_error(output.to(at::kFloat), expected);
        };
        const testing::SharedFolder folder(world);
        std::vector<double> expected;
        for (const bool resumes : {false, true}) {
          Accelerator accelerator = on_sharded_mesh(world, mesh, options);
          PipelineTraining training(accelerator, task);
          const auto epochs = [&](int64_t count) {
            return norms_of_epochs(
                accelerator, training.objects, 0.05, count,
                [&](auto& model, auto& input, auto& target) { model->train_step(input, target, error); });
          };
          if (resumes) {
            accelerator.load_state(folder.path / "c");
            CHECK(largest_difference(epochs(2), expected) == 0);
          } else {
            epochs(2);
            accelerator.save_state(folder.path / "c");
            expected = epochs(2);
          }
          const auto scope = Accelerator::summon_full_params(std::get<0>(training.objects));
          const auto values = whole.layers->named_parameters();
          double largest = 0;
          for (const auto& item : training.pipeline->named_parameters()) {
            largest = std::max(largest, largest_difference({item.value().to(at::kFloat)}, {values[item.key()]}));
          }
          CHECK(largest > 0);
          CHECK(largest < 0.02);
        }
      }
    }
  });
}

TEST_CASE("moving averages of sharded stages are those of one process, and are saved whole") {
  with_sharded_ranks([](const Group& world) {
    const testing::SharedFolder folder(world);
    const Task task;
    Accelerator one = alone();
    WholeTraining whole(one, task);
    auto& expected = std::get<0>(whole.objects);
    accelerate::optim::ExponentialMovingAverage expected_average(expected, {.decay = 0.9});
    whole.epochs(1);
    expected_average.update();
    const auto swapped = expected_average.average_parameters();
    for (const auto& mesh : sharded_meshes(world.size())) {
      CAPTURE(mesh.text());
      Accelerator accelerator = on_sharded_mesh(world, mesh);
      PipelineTraining training(accelerator, task);
      const auto& model = std::get<0>(training.objects);
      accelerate::optim::ExponentialMovingAverage average(model, {.decay = 0.9});
      training.epochs(1);
      average.update();
      accelerator.register_for_checkpointing(average);
      const auto place = folder.path / mesh.text();
      accelerator.save_state(place);
      const auto scope = average.average_parameters();
      CHECK(difference_of_whole(training, whole.layers) < 1e-12);

      Accelerator resumed = on_sharded_mesh(world, mesh);
      PipelineTraining loaded(resumed, task);
      accelerate::optim::ExponentialMovingAverage loaded_average(std::get<0>(loaded.objects), {.decay = 0.9});
      resumed.register_for_checkpointing(loaded_average);
      resumed.load_state(place);
      CHECK(loaded_average.updates() == 1);
      const auto loaded_scope = loaded_average.average_parameters();
      CHECK(difference_of_whole(loaded, whole.layers) < 1e-12);

      Accelerator single = alone();
      WholeTraining joined(single, task);
      accelerate::optim::ExponentialMovingAverage joined_average(std::get<0>(joined.objects), {.decay = 0.9});
      single.register_for_checkpointing(joined_average);
      single.load_state(place);
      const auto averages = joined_average.averages(), expected_averages = expected_average.averages();
      for (size_t i = 0; i < averages.size(); ++i)
        CHECK((averages[i] - expected_averages[i]).abs().max().item<double>() < 1e-12);
      world.barrier();
    }
  });
}

}  // namespace pipeline_testing
