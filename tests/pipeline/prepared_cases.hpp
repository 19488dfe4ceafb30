// SPDX-License-Identifier: Apache-2.0
// Tests of prepared pipelines on ranks of any kind. The including file defines with_mesh_ranks().
#pragma once

#include <cmath>
#include <limits>

#include "tests/checkpoint/folder.hpp"
#include "tests/pipeline/prepared_training.hpp"
#include "tests/refusal.hpp"
#include "tests/temporary_folder.hpp"

namespace pipeline_testing {

TEST_CASE("a prepared pipeline trains on every mesh like one process, with every schedule") {
  with_mesh_ranks([](const Group& world) {
    for (const auto& make_optimizer : {adamw, sgd}) {
      const Task task{.make_optimizer = make_optimizer};
      Accelerator one = alone();
      WholeTraining whole(one, task);
      const auto expected = whole.epochs(4);
      for (const auto& mesh : pipeline_meshes(world.size())) {
        for (const auto& [schedule, stages] : {std::pair(PipelineSchedule::gpipe, 1),
                                               {PipelineSchedule::one_forward_one_backward, 1},
                                               {PipelineSchedule::interleaved, 2}}) {
          CAPTURE(mesh.text());
          CAPTURE(schedule_name(schedule));
          Accelerator accelerator = on_mesh(world, mesh);
          PipelineTraining training(accelerator, task,
                                    {.schedule = schedule, .micro_batches = 2, .stages_per_rank = stages});
          CHECK(largest_difference(training.epochs(4), expected) < 1e-12);
          CHECK(difference(*training.pipeline, whole.layers) < 1e-12);
          accelerator.check_synchronized(std::get<0>(training.objects));
        }
      }
    }
  });
}

TEST_CASE("a prepared pipeline accumulates over several batches, with a short last window") {
  with_mesh_ranks([](const Group& world) {
    const Task task;
    Accelerator one = alone({.gradient_accumulation_steps = 2});
    WholeTraining whole(one, task);
    const auto expected = whole.epochs(4);  // 3 batches per epoch: windows of 2 and 1
    for (const auto& mesh : pipeline_meshes(world.size())) {
      CAPTURE(mesh.text());
      Accelerator accelerator = on_mesh(world, mesh, {.gradient_accumulation_steps = 2});
      PipelineTraining training(accelerator, task);
      const auto seen = training.epochs(4);
      double largest = 0;
      for (size_t i = 0; i < seen.size(); ++i) {
        // Before the end of a window each rank has only the gradients of its own batches.
        if (i % 3 != 0) largest = std::max(largest, std::abs(seen[i] - expected[i]));
      }
      CHECK(largest < 1e-12);
      CHECK(difference(*training.pipeline, whole.layers) < 1e-12);
    }
  });
}

TEST_CASE("a weight of the first and the last stage counts once in every kind of norm") {
  with_mesh_ranks([](const Group& world) {
    const Task task = tied_task();
    Accelerator one = alone();
    WholeTraining whole(one, task);
    const auto expected = whole.epochs(3);
    for (const auto& mesh : pipeline_meshes(world.size())) {
      CAPTURE(mesh.text());
      Accelerator accelerator = on_mesh(world, mesh);
      PipelineTraining training(accelerator, task);
      CHECK(largest_difference(training.epochs(3), expected) < 1e-12);
      CHECK(difference(*training.pipeline, whole.layers) < 1e-12);
      for (const double kind : {1.0, std::numeric_limits<double>::infinity()}) {
        one.clip_grad_norm_(std::get<0>(whole.objects), 1e9);
        const auto norm = one.clip_grad_norm_(std::get<0>(whole.objects), 1e9, kind);
        const auto own = accelerator.clip_grad_norm_(std::get<0>(training.objects), 1e9, kind, true);
        CHECK(own.item<double>() == doctest::Approx(norm.item<double>()).epsilon(1e-10));
      }
    }
  });
}

TEST_CASE("the loss is the mean of this pipeline's batch, and outputs are gathered from the last stages") {
  with_mesh_ranks([](const Group& world) {
    for (const auto& mesh : pipeline_meshes(world.size())) {
      CAPTURE(mesh.text());
      Accelerator accelerator = on_mesh(world, mesh);
      PipelineTraining training(accelerator, {});
      auto whole = mlp();
      auto& [model, optimizer, loader] = training.objects;
      for (auto& [input, target] : loader) {
        const auto expected = squared_error(whole->forward(input), target);
        const auto loss = model->train_step(input, target, squared_error);
        CHECK(std::abs(loss.template item<double>() - expected.template item<double>()) < 1e-12);
        break;
      }
      model.eval();
      at::Tensor all = torch::empty({0, 3}, at::kDouble), targets = all;
      for (auto& [input, target] : loader) {
        const auto output = model(input);
        CHECK(output.defined() == training.pipeline->has_last_stage());
        if (!output.defined()) continue;
        all = torch::cat({all, accelerator.gather_for_metrics(output.detach())});
        targets = torch::cat({targets, accelerator.gather_for_metrics(target)});
      }
      if (!training.pipeline->has_last_stage()) continue;
      CHECK(all.size(0) == 24);
      const auto expected = squared_error(whole->forward(waves({24, 7}, 1)), waves({24, 3}, 2));
      CHECK(std::abs(squared_error(all, targets).item<double>() - expected.item<double>()) < 1e-12);
    }
  });
}

TEST_CASE("fp16 scales the loss of a pipeline, and all stages skip a step if one overflows") {
  with_mesh_ranks([](const Group& world) {
    const Task task = float_task();
    const AcceleratorOptions options{.mixed_precision = accelerate::Precision::fp16,
                                     .grad_scaler = {.init_scale = 256.0, .growth_interval = 1000}};
    Accelerator one = alone(options);
    WholeTraining whole(one, task);
    const auto expected = whole.epochs(2);
    for (const auto& mesh : pipeline_meshes(world.size())) {
      CAPTURE(mesh.text());
      Accelerator accelerator = on_mesh(world, mesh, options);
      PipelineTraining training(accelerator, task);
      CHECK(largest_difference(training.epochs(2), expected) < 2e-3);
      CHECK(accelerator.loss_scale() == 256.0);
      auto& [model, optimizer, loader] = training.objects;
      std::vector<torch::Tensor> before;
      for (const auto& parameter : model.parameters()) before.push_back(parameter.detach().clone());
      optimizer.zero_grad();
      const auto input = torch::full({2, 7}, world.rank() == 0 ? 1e30 : 1.0, at::kFloat);
      model->train_step(input, waves({2, 3}, 1).to(at::kFloat), squared_error);
      optimizer.step();
      CHECK(optimizer.step_was_skipped());
      CHECK(accelerator.loss_scale() == 128.0);
      CHECK(largest_difference(model.parameters(), before) == 0);
    }
  });
}

TEST_CASE("a stage without trainable parameters steps with the other stages, in float32 and in fp16") {
  with_mesh_ranks([](const Group& world) {
    const auto make = [] {
      auto layers = filled(Sequential(torch::nn::Linear(7, 3), torch::nn::Tanh()));
      layers->to(torch::kFloat);
      return layers;
    };
    const auto make_frozen = [] {
      auto layers = filled(Sequential(torch::nn::Linear(7, 5), torch::nn::Linear(5, 3)));
      layers->to(torch::kFloat);
      for (auto& parameter : (*layers)[1]->parameters()) parameter.requires_grad_(false);
      return layers;
    };
    for (const auto& make_layers : {std::function<Sequential()>(make), std::function<Sequential()>(make_frozen)}) {
      const Task task{.make = make_layers,
                      .inputs = waves({24, 7}, 1).to(at::kFloat),
                      .targets = waves({24, 3}, 2).to(at::kFloat),
                      .make_optimizer = sgd_of_learning};
      for (const auto precision : {accelerate::Precision::no, accelerate::Precision::fp16}) {
        AcceleratorOptions options;
        options.mixed_precision = precision;
        options.grad_scaler = {.init_scale = 256.0, .growth_interval = 2};
        Accelerator one = alone(options);
        WholeTraining whole(one, task);
        const auto expected = whole.epochs(2);
        for (const auto& mesh : pipeline_meshes(world.size())) {
          if (mesh.pp_size == 4) continue;
          CAPTURE(mesh.text());
          Accelerator accelerator = on_mesh(world, mesh, options);
          PipelineTraining training(accelerator, task);
          CHECK(largest_difference(training.epochs(2), expected) < 2e-3);
          CHECK(accelerator.loss_scale() == one.loss_scale());
          CHECK(std::get<0>(training.objects).core().parameters().size() == training.pipeline->parameters().size());
          const testing::SharedFolder folder(world);
          accelerator.save_state(folder.path / "c");
          accelerator.load_state(folder.path / "c");
        }
      }
    }
  });
}

TEST_CASE("a pipeline trains in bf16 and pure bf16 within bf16 precision, and the loss function gets float32") {
  with_mesh_ranks([](const Group& world) {
    Task task = float_task();
    task.make_optimizer = sgd;
    Accelerator one = alone();
    WholeTraining whole(one, task);
    whole.epochs(4);
    AcceleratorOptions autocast, pure;
    autocast.mixed_precision = accelerate::Precision::bf16;
    pure.precision_policy = accelerate::precision::pure_bf16();
    for (const auto& options : {autocast, pure}) {
      for (const auto& mesh : pipeline_meshes(world.size())) {
        CAPTURE(mesh.text());
        Accelerator accelerator = on_mesh(world, mesh, options);
        PipelineTraining training(accelerator, task);
        auto& [model, optimizer, loader] = training.objects;
        std::vector<torch::ScalarType> dtypes;
        for (auto& [input, target] : loader) {
          model->train_step(input, target, [&](const torch::Tensor& output, const torch::Tensor& expected) {
            dtypes.push_back(output.scalar_type());
            return squared_error(output.to(at::kFloat), expected);
          });
          break;
        }
        optimizer.zero_grad();
        if (options.mixed_precision == autocast.mixed_precision && training.pipeline->has_last_stage()) {
          CHECK(!dtypes.empty());
          for (const auto dtype : dtypes) CHECK((dtype == torch::kFloat));
        }
        training.epochs(4);
        double largest = 0;
        const auto expected = whole.layers->named_parameters();
        for (const auto& shard : model.parameter_shards()) {
          const auto value = shard.master.defined() ? shard.master : shard.value;
          largest = std::max(largest, largest_difference({value.to(at::kFloat)}, {expected[shard.name]}));
        }
        CHECK(largest > 0);
        CHECK(largest < 0.02);
        accelerator.check_synchronized(model);
      }
    }
  });
}

TEST_CASE("buffers of stages are broadcast from the first data parallel rank") {
  with_mesh_ranks([](const Group& world) {
    const auto make = [] {
      using namespace torch::nn;
      using torch::nn::Linear;
      return filled(Sequential(Linear(7, 9), BatchNorm1d(9), Linear(9, 6), BatchNorm1d(6), Linear(6, 3)));
    };
    for (const auto& mesh : pipeline_meshes(world.size())) {
      if (mesh.pp_size == 4 || mesh.dp_replicate_size > 2) continue;  // BatchNorm needs two rows
      CAPTURE(mesh.text());
      Accelerator accelerator = on_mesh(world, mesh);
      PipelineTraining training(accelerator, {.make = make});
      training.epochs(1);
      auto& [model, optimizer, loader] = training.objects;
      model.eval();
      std::ignore = model(waves({4, 7}, 1));  // broadcasts
      std::vector<at::Tensor> buffers;
      for (const auto& buffer : training.pipeline->buffers()) buffers.push_back(buffer.to(at::kDouble).reshape({-1}));
      if (buffers.empty()) continue;
      const auto all = accelerator.data_parallel_group().all_gather_list(torch::cat(buffers));
      for (const auto& other : all) CHECK(other.equal(all.front()));
      CHECK(all.front().abs().sum().item<double>() > 0);
    }
  });
}

TEST_CASE("no_sync keeps gradients local, and a later step averages all accumulated gradients") {
  with_mesh_ranks([](const Group& world) {
    for (const auto& mesh : pipeline_meshes(world.size())) {
      CAPTURE(mesh.text());
      Accelerator accelerator = on_mesh(world, mesh);
      PipelineTraining training(accelerator, {});
      auto& [model, optimizer, loader] = training.objects;
      auto whole = mlp();
      const auto data_rank = accelerator.data_parallel_group().rank(),
                 data_ranks = accelerator.data_parallel_group().size();
      const auto input = [](int64_t rank) { return waves({4, 7}, 1 + static_cast<double>(rank)); };
      const auto target = waves({4, 3}, 2);
      {
        const auto off = accelerator.no_sync(model);
        model->train_step(input(data_rank), target, squared_error);
      }
      if (data_ranks > 1 && !model.parameters().empty()) {
        const auto text = testing::refusal([&] { optimizer.step(); });
        CHECK_MESSAGE(
            text.find("is local to this rank, because no_sync() was open in the last train_step() of the Pipeline; "
                      "run the last train_step() before optimizer.step() outside of no_sync()") != std::string::npos,
            text);
      }
      model->train_step(input(data_rank), target, squared_error);
      for (int64_t rank = 0; rank < data_ranks; ++rank) {
        (squared_error(whole->forward(input(rank)), target) * 2 / data_ranks).backward();
      }
      const auto expected = whole->named_parameters();
      for (const auto& item : training.pipeline->named_parameters()) {
        CHECK(largest_difference({item.value().grad()}, {expected[item.key()].grad()}) < 1e-12);
      }
      optimizer.step();
      optimizer.zero_grad();
      const auto off = accelerator.no_sync(model);
      accelerator.trigger_sync_in_backward(model);
      model->train_step(input(data_rank), target, squared_error);
      optimizer.step();
      accelerator.check_synchronized(model);
    }
  });
}

TEST_CASE("training resumes from a checkpoint of stages on every mesh and in one process") {
  with_mesh_ranks([](const Group& world) {
    for (const Task& task : {Task{}, tied_task(), Task{.make_optimizer = sgd}}) {
      Accelerator one = alone();
      WholeTraining whole(one, task);
      whole.epochs(2);
      const auto expected = whole.epochs(2);
      for (const auto& saved_on : pipeline_meshes(world.size())) {
        CAPTURE(saved_on.text());
        const testing::SharedFolder folder(world);
        {
          Accelerator accelerator = on_mesh(world, saved_on);
          PipelineTraining training(accelerator, task);
          training.epochs(2);
          accelerator.save_state(folder.path / "c");
        }
        for (const auto& loaded_on : pipeline_meshes(world.size())) {
          CAPTURE(loaded_on.text());
          Accelerator accelerator = on_mesh(world, loaded_on);
          PipelineTraining training(accelerator, task);
          accelerator.load_state(folder.path / "c");
          CHECK(largest_difference(training.epochs(2), expected) < 1e-12);
          CHECK(difference(*training.pipeline, whole.layers) < 1e-12);
        }
        Accelerator single = alone();
        WholeTraining continued(single, task);
        single.load_state(folder.path / "c");
        CHECK(largest_difference(continued.epochs(2), expected) < 1e-12);
        world.barrier();
      }
    }
  });
}

TEST_CASE("training in stages resumes from a checkpoint of one process") {
  with_mesh_ranks([](const Group& world) {
    const Task task = tied_task();
    const testing::SharedFolder folder(world);
    Accelerator one = alone();
    WholeTraining whole(one, task);
    whole.epochs(2);
    if (world.rank() == 0) one.save_state(folder.path / "c");
    world.barrier();
    const auto expected = whole.epochs(2);
    for (const auto& mesh : pipeline_meshes(world.size())) {
      CAPTURE(mesh.text());
      Accelerator accelerator = on_mesh(world, mesh);
      PipelineTraining training(accelerator, task);
      accelerator.load_state(folder.path / "c");
      CHECK(largest_difference(training.epochs(2), expected) < 1e-12);
    }
    world.barrier();
  });
}

TEST_CASE("parameter groups, moving averages and buffers of all stages are saved and loaded") {
  with_mesh_ranks([](const Group& world) {
    // Weights and biases are in two groups, so that the parameter numbers of a stage are not contiguous.
    const MakeOptimizer two_groups = [](const std::vector<torch::Tensor>& parameters) {
      std::vector<torch::Tensor> weights, biases;
      for (const auto& each : parameters) (each.dim() > 1 ? weights : biases).push_back(each);
      auto optimizer = std::make_unique<torch::optim::AdamW>(weights, torch::optim::AdamWOptions(1e-2));
      optimizer->add_param_group({biases, std::make_unique<torch::optim::AdamWOptions>(3e-2)});
      return optimizer;
    };
    const auto make = [] {
      using namespace torch::nn;
      using torch::nn::Linear;
      return filled(Sequential(Linear(7, 9), BatchNorm1d(9), Linear(9, 6), BatchNorm1d(6), Linear(6, 3)));
    };
    const Task task{.make = make, .make_optimizer = two_groups};
    for (const auto& mesh : pipeline_meshes(world.size())) {
      if (mesh.dp_replicate_size > 2) continue;  // BatchNorm needs two rows
      CAPTURE(mesh.text());
      const testing::SharedFolder folder(world);
      std::vector<double> expected;
      torch::OrderedDict<std::string, at::Tensor> average;
      const auto run = [&](bool loads) {
        Accelerator accelerator = on_mesh(world, mesh);
        PipelineTraining training(accelerator, task);
        auto& model = std::get<0>(training.objects);
        accelerate::optim::ExponentialMovingAverage ema(model, {.decay = 0.9});
        accelerator.register_for_checkpointing(ema);
        if (loads) {
          accelerator.load_state(folder.path / "c");
          const auto loaded = ema.state_dict();
          CHECK(loaded.size() == average.size());
          for (const auto& item : loaded) CHECK(item.value().equal(average[item.key()]));
          CHECK(largest_difference(training.epochs(1), expected) < 1e-12);
          return;
        }
        training.epochs(1);
        ema.update();
        average = ema.state_dict();
        accelerator.save_state(folder.path / "c");
        expected = training.epochs(1);
      };
      run(false);
      run(true);
      Accelerator single = alone();
      WholeTraining whole(single, task);
      auto& model = std::get<0>(whole.objects);
      accelerate::optim::ExponentialMovingAverage ema(model, {.decay = 0.9});
      single.register_for_checkpointing(ema);
      single.load_state(folder.path / "c");
      const auto all = ema.state_dict();
      for (const auto& item : average) CHECK(all[item.key()].equal(item.value()));
      world.barrier();
    }
  });
}

TEST_CASE("save_model and get_state_dict return the whole model, and load_model loads a stage") {
  with_mesh_ranks([](const Group& world) {
    for (const Task& task : {Task{}, tied_task()}) {
      for (const auto& mesh : pipeline_meshes(world.size())) {
        CAPTURE(mesh.text());
        const testing::SharedFolder folder(world);
        Accelerator accelerator = on_mesh(world, mesh);
        PipelineTraining training(accelerator, task);
        const auto& model = std::get<0>(training.objects);
        accelerator.save_model(model, folder.path);
        const auto dict = Accelerator::get_state_dict(model);
        const auto expected = task.make()->named_parameters();
        const bool has_all = world.rank() == 0 || mesh.pp_size == 1;
        CHECK(dict.size() == (has_all ? expected.size() : 0));
        for (const auto& item : dict) CHECK(item.value().cpu().equal(expected[item.key()]));
        Accelerator single = alone();
        auto layers = task.make();
        for (auto& parameter : layers->parameters()) parameter.detach().zero_();
        const auto whole = single.prepare(layers);
        CHECK(single.load_model(whole, folder.path) == accelerate::LoadedModel{});
        for (const auto& item : layers->named_parameters()) CHECK(item.value().equal(expected[item.key()]));
        for (auto& parameter : training.pipeline->parameters()) parameter.detach().zero_();
        CHECK(accelerator.load_model(model, folder.path) == accelerate::LoadedModel{});
        CHECK(difference(*training.pipeline, layers) == 0);
        world.barrier();
      }
    }
  });
}

}  // namespace pipeline_testing
