// SPDX-License-Identifier: Apache-2.0
// An Accelerator with a mesh: the loop of one process, unchanged, on every mesh of the ranks. The including file
// defines with_mesh_ranks().
#pragma once

#include "tests/tensor_parallel/support.hpp"
//
#include <tuple>

#include "accelerate/accelerate.hpp"
#include "accelerate/pipeline/pipeline.hpp"
#include "tests/checkpoint/folder.hpp"
#include "tests/temporary_folder.hpp"
#include "tests/tensor_parallel/mesh_training.hpp"

using namespace mesh_testing;

TEST_CASE("the unchanged loop trains on every mesh like one process") {
  with_mesh_ranks([](const Group& world) {
    Accelerator one = alone();
    auto expected = reference(one);
    const auto expected_seen = expected.epochs(3);
    for (const Mesh& mesh : meshes(world.size())) {
      CAPTURE(mesh.text());
      Accelerator accelerator = on_mesh(world, mesh);
      auto training = split(accelerator);
      const auto seen = training.epochs(3);
      CHECK(close(seen, expected_seen));
      training.check_same_state(expected.module);
      accelerator.check_synchronized(std::get<0>(training.objects));
    }
  });
}

TEST_CASE("parameters that are not split, and buffers, begin equal on all ranks of a mesh") {
  with_mesh_ranks([](const Group& world) {
    for (const Mesh& mesh : meshes(world.size())) {
      CAPTURE(mesh.text());
      Accelerator accelerator = on_mesh(world, mesh);
      auto module = seeded([&] { return SplitMlp(accelerator.tensor_parallel_group()); });
      {
        const torch::NoGradGuard no_grad;
        module->down->bias.fill_(static_cast<double>(world.rank()));
      }
      module->register_buffer("count", torch::full({1}, world.rank(), at::kDouble));
      const auto model = accelerator.prepare(module);
      const auto whole = Accelerator::summon_full_params(model);
      CHECK(module->down->bias.eq(0).all().item<bool>());
      CHECK(module->named_buffers()["count"].item<double>() == 0);
      accelerator.check_synchronized(model);
    }
  });
}

TEST_CASE("a mesh has the ranks and groups of Accelerate's names") {
  with_mesh_ranks([](const Group& world) {
    for (const Mesh& mesh : meshes(world.size())) {
      CAPTURE(mesh.text());
      const Accelerator accelerator = on_mesh(world, mesh);
      const int64_t tensor = *mesh.sizes.tp_size;
      CHECK(accelerator.parallelism_config() == mesh.sizes.completed(world.size()));
      CHECK(accelerator.num_processes() == world.size());
      CHECK(accelerator.process_index() == world.rank());
      CHECK(accelerator.group().size() == world.size());
      CHECK(accelerator.is_main_process() == (world.rank() == 0));
      CHECK(accelerator.tensor_parallel_rank() == world.rank() % tensor);
      const int64_t shards = mesh.sizes.size(accelerate::MeshDimension::dp_shard);
      CHECK(accelerator.data_parallel_rank() == world.rank() / tensor / shards);
      CHECK(accelerator.data_parallel_shard_rank() == world.rank() / tensor % shards);
      CHECK(accelerator.pipeline_parallel_rank() == 0);
      CHECK(accelerator.context_parallel_rank() == 0);
      CHECK(accelerator.should_save_model() == (world.rank() < tensor * shards));
      CHECK(accelerator.tensor_parallel_group().size() == tensor);
      CHECK(accelerator.tensor_parallel_group().rank() == world.rank() % tensor);
      CHECK(accelerator.data_parallel_group().size() == world.size() / tensor);
      CHECK(accelerator.data_parallel_group().rank() == world.rank() / tensor);
      CHECK(accelerator.pipeline_parallel_group().size() == 1);
      CHECK(accelerator.gather(torch::full({1}, world.rank(), at::kLong)).size(0) == world.size());
      CHECK(accelerator.gather_for_metrics(std::vector<std::string>{"a"}).size() ==
            static_cast<size_t>(world.size() / tensor));
      accelerator.wait_for_everyone();
    }
  });
}

TEST_CASE("the stages of a pipeline read the same batches") {
  with_mesh_ranks([](const Group& world) {
    if (world.size() == 1) return;
    Accelerator accelerator = on_mesh(world, {{.dp_replicate_size = world.size() / 2, .pp_size = 2}});
    CHECK(accelerator.pipeline_parallel_rank() == world.rank() / (world.size() / 2));
    CHECK(accelerator.pipeline_parallel_group().size() == 2);
    auto loader = accelerator.prepare(samples(3, 20));
    for (auto& [x, y] : loader) {
      const auto stages = accelerator.pipeline_parallel_group().all_gather_list(x);
      CHECK(stages[0].equal(stages[1]));
    }
    at::Tensor all = torch::empty({0, 6}, at::kDouble);
    for (auto& [x, y] : loader) all = torch::cat({all, accelerator.gather_for_metrics(x)});
    CHECK(all.size(0) == 20);
  });
}

TEST_CASE("a pipeline trains on a mesh with data parallelism like one process") {
  with_mesh_ranks([](const Group& world) {
    if (world.size() == 1 || world.device()) return;  // a pipeline moves its layers to the device of its group
    const auto make_layers = [] {
      return seeded([] {
        torch::nn::Sequential layers(torch::nn::Linear(6, 8), torch::nn::GELU(), torch::nn::Linear(8, 5));
        layers->to(at::kDouble);
        return layers;
      });
    };
    const auto loss_function = [](const at::Tensor& output, const at::Tensor& target) {
      return torch::mse_loss(output, target);
    };
    Accelerator accelerator = on_mesh(world, {{.dp_replicate_size = world.size() / 2, .pp_size = 2}});
    Pipeline model(accelerator.pipeline_parallel_group(), make_layers(), {.micro_batches = 2});
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    auto loader = accelerator.prepare(samples(8 / accelerator.data_parallel_group().size()));
    auto stock = make_layers();
    torch::optim::SGD stock_optimizer(stock->parameters(), 0.1);
    auto stock_loader = samples(8);
    std::vector<double> norms, expected;
    for (auto& [x, y] : loader) {
      optimizer.zero_grad();
      std::ignore = model.train_step(x, y, loss_function);
      for (const auto& parameter : model.parameters()) {
        accelerator.data_parallel_group().all_reduce(parameter.grad(), accelerate::comm::ReduceOp::mean);
      }
      norms.push_back(model.clip_grad_norm_(0.05).item<double>());
      optimizer.step();
    }
    for (auto& [x, y] : stock_loader) {
      stock_optimizer.zero_grad();
      loss_function(stock->forward(x), y).backward();
      expected.push_back(torch::nn::utils::clip_grad_norm_(stock->parameters(), 0.05));
      stock_optimizer.step();
    }
    CHECK(norms.size() == 3);
    CHECK(close(norms, expected));
  });
}

TEST_CASE("save_model() writes the file of the unsplit model, which loads on every mesh") {
  with_mesh_ranks([](const Group& world) {
    const testing::SharedFolder folder(world);
    Accelerator one = alone();
    auto whole = reference(one);
    if (world.rank() == 0) one.save_model(std::get<0>(whole.objects), folder.path / "whole");
    int64_t number = 0;
    for (const Mesh& mesh : meshes(world.size())) {
      CAPTURE(mesh.text());
      Accelerator accelerator = on_mesh(world, mesh);
      auto training = split(accelerator);
      const auto& model = std::get<0>(training.objects);
      const auto place = folder.path / std::to_string(++number);
      accelerator.save_model(model, place);
      CHECK(testing::text_of(place / "model.safetensors") ==
            testing::text_of(folder.path / "whole" / "model.safetensors"));
      const auto dict = Accelerator::get_state_dict(model);
      if (world.rank() == 0) {
        for (const auto& item : whole.module->named_parameters()) CHECK(dict[item.key()].equal(item.value()));
      } else if (*mesh.sizes.tp_size > 1) {
        CHECK(dict.is_empty());
      }
      for (const Mesh& other : meshes(world.size())) {
        CAPTURE(other.text());
        Accelerator next = on_mesh(world, other);
        auto loaded = split(next, /*seed=*/12);
        CHECK((next.load_model(std::get<0>(loaded.objects), place) == accelerate::LoadedModel{}));
        loaded.check_same_state(whole.module, 0);
      }
      auto loaded = reference(one);
      CHECK_NOTHROW(std::ignore = one.load_model(std::get<0>(loaded.objects), place));
      check_same_state(loaded.module, whole.module, 0);
    }
  });
}

TEST_CASE("a checkpoint of every mesh continues on every other mesh and on one process") {
  with_mesh_ranks([](const Group& world) {
    const testing::SharedFolder folder(world);
    Accelerator one = alone();
    auto expected = reference(one);
    std::ignore = expected.epochs(1);
    const auto expected_seen = expected.epochs(1);
    int64_t number = 0;
    for (const Mesh& mesh : meshes(world.size())) {
      CAPTURE(mesh.text());
      const auto place = folder.path / std::to_string(++number);
      {
        Accelerator accelerator = on_mesh(world, mesh);
        auto training = split(accelerator);
        std::ignore = training.epochs(1);
        accelerator.save_state(place);
      }
      for (const Mesh& other : meshes(world.size())) {
        CAPTURE(other.text());
        Accelerator accelerator = on_mesh(world, other);
        auto training = split(accelerator, /*seed=*/12);
        CHECK(accelerator.load_state(place).world_size == world.size());
        CHECK(close(training.epochs(1), expected_seen));
        training.check_same_state(expected.module);
      }
      if (world.rank() == 0) {
        Accelerator single = alone();
        auto training = reference(single);
        single.load_state(place);
        CHECK(close(training.epochs(1), expected_seen));
        check_same_state(training.module, expected.module);
      }
      world.barrier();
    }
  });
}
