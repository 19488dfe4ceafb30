// SPDX-License-Identifier: Apache-2.0
// Tensor parallel layers that are sharded over the data parallel ranks, beyond the cases of every mesh.
#include "tests/tensor_parallel/support.hpp"
//
#include <limits>

#include "accelerate/accelerate.hpp"
#include "tests/temporary_folder.hpp"
#include "tests/tensor_parallel/mesh_training.hpp"

using namespace mesh_testing;
using accelerate::comm::run_threads;
using enum ShardingStrategy;

namespace {

const Mesh kHybrid{{.dp_replicate_size = 2, .dp_shard_size = 2, .tp_size = 2}, full_shard};

accelerate::AcceleratorOptions options_of(const Mesh& mesh) {
  return {.cpu = true, .parallelism_config = mesh.sizes, .sharding = mesh.sharding};
}

}  // namespace

TEST_CASE("replicated, sharded and split dimensions train together like one process, and resume on another mesh") {
  const testing::TemporaryFolder folder;
  run_threads(8, [&](const Group& world) {
    Accelerator one = alone();
    auto expected = reference(one);
    const auto expected_seen = expected.epochs(1), expected_next = expected.epochs(1);
    const std::vector<Mesh> all{kHybrid,
                                {kHybrid.sizes, shard_grad_op},
                                {{.dp_shard_size = 2, .tp_size = 4}, full_shard},
                                {{.dp_shard_size = 4, .tp_size = 2}, shard_optim_op}};
    for (size_t i = 0; i < all.size(); ++i) {
      CAPTURE(all[i].text());
      const auto place = folder.path / std::to_string(i);
      {
        Accelerator accelerator = on_mesh(world, all[i]);
        auto training = split(accelerator);
        CHECK(close(training.epochs(1), expected_seen));
        accelerator.check_synchronized(std::get<0>(training.objects));
        accelerator.save_state(place);
      }
      Accelerator accelerator = on_mesh(world, all[(i + 1) % all.size()]);
      auto training = split(accelerator, /*seed=*/12);
      accelerator.load_state(place);
      CHECK(close(training.epochs(1), expected_next));
      training.check_same_state(expected.module);
    }
  });
}

TEST_CASE("each rank keeps its elements of its parts of layers") {
  run_threads(4, [](const Group& world) {
    Accelerator accelerator = on_mesh(world, {{.dp_shard_size = 2, .tp_size = 2}, full_shard});
    auto module = seeded([&] { return SplitMlp(accelerator.tensor_parallel_group()); });
    const int64_t own = module->up->weight.numel() + module->up->bias.numel() + module->down->weight.numel() + 5;
    CHECK(own == 24 + 4 + 20 + 5);
    const auto model = accelerator.prepare(module);
    CHECK(accelerator.sharding_plan(model).find(fmt::format(" {} elements on 2 ranks", own)) != std::string::npos);
  });
}

TEST_CASE("with bfloat16 parameters the masters of sharded parts are saved and loaded on another mesh") {
  const testing::TemporaryFolder folder;
  run_threads(4, [&](const Group& world) {
    const auto train = [&](const Mesh& mesh, const std::filesystem::path& from, const std::filesystem::path& to) {
      auto options = options_of(mesh);
      options.precision_policy = accelerate::precision::pure_bf16();
      Accelerator accelerator(world.duplicate(), options);
      auto module = seeded([&] { return SplitMlp(accelerator.tensor_parallel_group()); });
      module->to(at::kFloat);
      auto [model, optimizer] =
          accelerator.prepare(module, torch::optim::AdamW(module->parameters(), torch::optim::AdamWOptions(1e-2)));
      if (!from.empty()) accelerator.load_state(from);
      for (uint64_t step = 0; step < 3 && from.empty(); ++step) {
        optimizer.zero_grad();
        accelerator.backward(model(numbers({4, 6}, step).to(at::kBFloat16)).pow(2).mean());
        optimizer.step();
      }
      accelerator.save_state(to);
    };
    const Mesh sharded{{.dp_shard_size = 2, .tp_size = 2}, full_shard};
    train(sharded, {}, folder.path / "a");
    train({{.dp_replicate_size = 2, .tp_size = 2}}, folder.path / "a", folder.path / "b");
    train(sharded, folder.path / "b", folder.path / "c");
    if (world.rank() != 0) return;
    for (const auto* file : {"model.safetensors", "master_weights.safetensors"}) {
      CAPTURE(file);
      const auto saved = testing::text_of(folder.path / "a" / file);
      CHECK_FALSE(saved.empty());
      CHECK(testing::text_of(folder.path / "b" / file) == saved);
      CHECK(testing::text_of(folder.path / "c" / file) == saved);
    }
  });
}

TEST_CASE("init_empty_weights() and prepare() give sharded split layers the values of eager construction") {
  run_threads(4, [](const Group& world) {
    Accelerator accelerator = on_mesh(world, {{.dp_shard_size = 2, .tp_size = 2}, full_shard});
    const auto stock = seeded([] { return StockMlp(); });
    auto module = seeded(
        [&] { return accelerate::init_empty_weights([&] { return SplitMlp(accelerator.tensor_parallel_group()); }); });
    const auto model = accelerator.prepare(module);
    const auto whole = Accelerator::summon_full_params(model);
    check_same_state(module, stock, 0);
  });
}

TEST_CASE("an overflow in one element of a sharded part skips the step on all ranks") {
  run_threads(4, [](const Group& world) {
    auto options = options_of({{.dp_shard_size = 2, .tp_size = 2}, full_shard});
    options.mixed_precision = accelerate::Precision::fp16;
    Accelerator accelerator(world.duplicate(), options);
    auto module = seeded([&] { return SplitMlp(accelerator.tensor_parallel_group()); });
    auto [model, optimizer] = accelerator.prepare(module, torch::optim::SGD(module->parameters(), 0.1));
    for (const bool overflows : {true, false}) {
      optimizer.zero_grad();
      const double factor = overflows && world.rank() == 1 ? std::numeric_limits<double>::infinity() : 1;
      accelerator.backward(model(numbers({2, 6}, 1)).sum() * factor);
      optimizer.step();
      CHECK(accelerator.optimizer_step_was_skipped() == overflows);
    }
  });
}

TEST_CASE("clip_grad_norm_() after free_memory() measures the gradients that are left") {
  run_threads(4, [](const Group& world) {
    const auto x = numbers({8, 6}, 3), y = numbers({8, 5}, 4);
    auto stock = seeded([] { return StockMlp(); });
    torch::mse_loss(stock->forward(x), y).backward();
    const double expected = torch::nn::utils::clip_grad_norm_(stock->parameters(), 1e9);
    for (const Mesh& mesh : meshes(world.size())) {
      CAPTURE(mesh.text());
      Accelerator accelerator = on_mesh(world, mesh);
      auto training = split(accelerator);
      auto& model = std::get<0>(training.objects);
      accelerator.backward(torch::mse_loss(model(x), y));
      accelerator.free_memory();
      // With these strategies a rank has no whole gradients, so free_memory() drops them.
      const bool drops = mesh.sharding == shard_grad_op || mesh.sharding == full_shard;
      CHECK(training.module->up->weight.grad().defined() == !drops);
      CHECK(accelerator.clip_grad_norm_(model, 1e9).item<double>() == doctest::Approx(drops ? 0 : expected));
      world.barrier();
    }
  });
}
