// SPDX-License-Identifier: Apache-2.0
// An Accelerator with context parallelism: the loop of one process on every mesh of the ranks. The including file
// defines with_training_ranks().
#pragma once

#include "tests/context_parallel/training.hpp"
//
#include "tests/checkpoint/folder.hpp"

using namespace context_parallel_testing;

TEST_CASE("a causal transformer trains on every mesh like one process") {
  with_training_ranks([](const Group& world) {
    Accelerator one = alone();
    ContextTraining expected(one);
    const auto expected_seen = expected.epochs(4);
    CHECK(expected_seen.size() == 2 * 20);
    for (const Mesh& mesh : context_meshes(world.size())) {
      CAPTURE(mesh.text());
      Accelerator accelerator = on_mesh(world, mesh);
      ContextTraining training(accelerator);
      CHECK(close(training.epochs(4), expected_seen));
      training.check_same_state(expected.module);
      accelerator.check_synchronized(std::get<0>(training.objects));
    }
  });
}

TEST_CASE("a checkpoint of every context parallel mesh continues on every other mesh and on one process") {
  with_training_ranks([](const Group& world) {
    const testing::SharedFolder folder(world);
    Accelerator one = alone();
    ContextTraining expected(one);
    std::ignore = expected.epochs(1);
    if (world.rank() == 0) one.save_state(folder.path / "one");
    world.barrier();
    const auto expected_seen = expected.epochs(1);
    std::vector<std::filesystem::path> places{folder.path / "one"};
    const auto meshes = context_meshes(world.size());
    for (const Mesh& mesh : meshes) {
      CAPTURE(mesh.text());
      places.push_back(folder.path / std::to_string(places.size()));
      Accelerator accelerator = on_mesh(world, mesh);
      ContextTraining training(accelerator);
      std::ignore = training.epochs(1);
      accelerator.save_state(places.back());
    }
    for (size_t i = 0; i < places.size(); ++i) {
      const Mesh& mesh = meshes[(i + 1) % meshes.size()];
      CAPTURE(i);
      CAPTURE(mesh.text());
      Accelerator accelerator = on_mesh(world, mesh);
      ContextTraining training(accelerator, /*seed=*/12);
      accelerator.load_state(places[i]);
      CHECK(close(training.epochs(1), expected_seen));
      training.check_same_state(expected.module);
      if (world.rank() == 0) {
        Accelerator single = alone();
        ContextTraining continued(single, /*seed=*/12);
        single.load_state(places[i]);
        CHECK(close(continued.epochs(1), expected_seen));
        continued.check_same_state(expected.module);
      }
      world.barrier();
    }
  });
}

TEST_CASE("losses that are sums over tokens are divided by the tokens of all ranks") {
  with_training_ranks([](const Group& world) {
    Accelerator one = alone();
    ContextTraining expected(one, 11, /*padded=*/true);
    for (auto& [ids, targets] : std::get<2>(expected.objects)) {
      auto& [model, optimizer, loader] = expected.objects;
      optimizer.zero_grad();
      const at::Tensor losses = model(ids, torch::arange(kTokens), targets);
      one.backward(losses.sum() / (targets != -100).sum());
      optimizer.step();
    }
    for (const Mesh& mesh : context_meshes(world.size())) {
      CAPTURE(mesh.text());
      Accelerator accelerator = on_mesh(world, mesh);
      ContextTraining training(accelerator, 11, /*padded=*/true);
      auto& [model, optimizer, loader] = training.objects;
      const at::Tensor positions = accelerator.context_parallel_split(torch::arange(kTokens), 0);
      for (auto& batch : loader) {
        const auto [ids, targets] = accelerator.context_parallel_split(batch, 1);
        optimizer.zero_grad();
        accelerator.backward(model(ids, positions, targets).sum(),
                             {.tokens = (targets != -100).sum().template item<int64_t>()});
        optimizer.step();
      }
      training.check_same_state(expected.module);
    }
  });
}

TEST_CASE("accumulated micro-batches on a context parallel mesh are those of one process") {
  with_training_ranks([](const Group& world) {
    const auto train = [](Accelerator& accelerator, ContextTraining& training) {
      auto& [model, optimizer, loader] = training.objects;
      const at::Tensor positions = accelerator.context_parallel_split(torch::arange(kTokens), 0);
      for (auto& batch : loader) {
        const auto scope = accelerator.accumulate(model);
        const auto [ids, targets] = accelerator.context_parallel_split(batch, 1);
        accelerator.backward(model(ids, positions, targets).mean());
        optimizer.step();
        optimizer.zero_grad();
      }
    };
    Accelerator one(Group(), {.cpu = true, .gradient_accumulation_steps = 2});
    ContextTraining expected(one);
    train(one, expected);
    Accelerator accelerator(
        world.duplicate(),
        {.cpu = true, .gradient_accumulation_steps = 2, .parallelism_config = {{.cp_size = world.size()}}});
    ContextTraining training(accelerator);
    train(accelerator, training);
    training.check_same_state(expected.module);
  });
}

TEST_CASE("a context parallel group reads the same batches, and metrics count a sample once") {
  with_training_ranks([](const Group& world) {
    for (const Mesh& mesh : context_meshes(world.size())) {
      CAPTURE(mesh.text());
      for (const bool dispatches : {false, true}) {
        Accelerator accelerator(
            world.duplicate(),
            {.cpu = true, .parallelism_config = mesh.sizes, .sharding = mesh.sharding, .dispatch_batches = dispatches});
        auto loader = accelerator.prepare(sequences(2, 10));
        CHECK(loader.total_batch_size() == 2 * accelerator.data_parallel_group().size());
        const Group& group = accelerator.context_parallel_group();
        int64_t samples = 0, batches = 0, names = 0;
        for (auto& [ids, targets] : loader) {
          for (const at::Tensor& other : group.all_gather_list(ids)) CHECK(other.equal(ids));
          samples += accelerator.gather_for_metrics(ids).size(0);
          names += std::ssize(accelerator.gather_for_metrics(std::vector<std::string>(2, "name")));
          ++batches;
        }
        CHECK(samples == 10);
        CHECK(names == 10);
        CHECK(batches == static_cast<int64_t>(loader.size()));
      }
    }
  });
}

TEST_CASE("a context parallel mesh has the ranks and groups of Accelerate's names") {
  with_training_ranks([](const Group& world) {
    for (const Mesh& mesh : context_meshes(world.size())) {
      CAPTURE(mesh.text());
      const Accelerator accelerator = on_mesh(world, mesh);
      const int64_t context = *mesh.sizes.cp_size, shards = mesh.sizes.size(accelerate::MeshDimension::dp_shard);
      CHECK(accelerator.context_parallel_rank() == world.rank() % context);
      CHECK(accelerator.context_parallel_group().size() == context);
      CHECK(accelerator.context_parallel_group().rank() == world.rank() % context);
      CHECK(accelerator.data_parallel_group().size() == world.size() / context);
      CHECK(accelerator.data_parallel_group().rank() == world.rank() / context);
      CHECK(accelerator.data_parallel_rank() == world.rank() / context / shards);
      CHECK(accelerator.should_save_model() ==
            (accelerator.data_parallel_rank() == 0 && accelerator.context_parallel_rank() == 0));
      CHECK(accelerator.gather(torch::full({1}, world.rank(), at::kLong)).size(0) == world.size());
      accelerator.wait_for_everyone();
    }
  });
}

TEST_CASE("parameters and buffers begin equal on all ranks of a context parallel mesh") {
  with_training_ranks([](const Group& world) {
    for (const Mesh& mesh : context_meshes(world.size())) {
      CAPTURE(mesh.text());
      Accelerator accelerator = on_mesh(world, mesh);
      torch::nn::Linear module(2, 3);
      {
        const torch::NoGradGuard no_grad;
        module->bias.fill_(static_cast<double>(world.rank()));
      }
      module->register_buffer("count", torch::full({1}, world.rank(), at::kDouble));
      const auto model = accelerator.prepare(module);
      const auto whole = Accelerator::summon_full_params(model);
      CHECK(module->bias.eq(0).all().item<bool>());
      CHECK(module->named_buffers()["count"].item<double>() == 0);
      accelerator.check_synchronized(model);
    }
  });
}

TEST_CASE("SyncBatchNorm normalises the tokens of all ranks") {
  with_training_ranks([](const Group& world) {
    for (const Mesh& mesh : context_meshes(world.size())) {
      if (mesh.sharding != ShardingStrategy::no_shard) continue;
      CAPTURE(mesh.text());
      Accelerator accelerator = on_mesh(world, mesh);
      torch::nn::Sequential module(accelerate::nn::SyncBatchNorm(3));
      module->to(at::kDouble);
      auto model = accelerator.prepare(module);
      const at::Tensor all = numbers({2 * accelerator.data_parallel_group().size(), 3, 24}, 1);
      const at::Tensor own = all.narrow(0, 2 * accelerator.data_parallel_group().rank(), 2);
      torch::nn::BatchNorm1d stock(3);
      stock->to(at::kDouble);
      const at::Tensor expected = stock(all).narrow(0, 2 * accelerator.data_parallel_group().rank(), 2);
      CHECK(close(model(accelerator.context_parallel_split(own, 2)).detach(),
                  accelerator.context_parallel_split(expected, 2).detach()));
    }
  });
}
