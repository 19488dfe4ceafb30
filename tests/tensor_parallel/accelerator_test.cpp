// SPDX-License-Identifier: Apache-2.0
// Split layers in models of an Accelerator: on the data parallel group they train, elsewhere calls are refused.
#include "tests/tensor_parallel/support.hpp"
//
#include <limits>
#include <tuple>

#include "accelerate/accelerate.hpp"
#include "accelerate/env/parallelism_config.hpp"
#include "accelerate/tensor_parallel/clip.hpp"
#include "tests/temporary_folder.hpp"

using namespace tensor_parallel_testing;
using accelerate::Accelerator;
using accelerate::comm::run_threads;

namespace {

/// Two data parallel ranks times two tensor parallel ranks.
struct SquareMesh {
  explicit SquareMesh(const Group& world)
      : config(accelerate::ParallelismConfig{.dp_replicate_size = 2, .tp_size = 2}.completed(world.size())),
        tensor(world.split(config.group(world.rank(), accelerate::MeshDimension::tp).front())),
        data(world.split(config.group(world.rank(), accelerate::env::mesh::kDp).front())) {}
  accelerate::ParallelismConfig config;
  Group tensor, data;
};

}  // namespace

TEST_CASE("an Accelerator on the data parallel group trains split layers like one process, with clipped gradients") {
  run_threads(4, [](const Group& world) {
    const SquareMesh mesh(world);
    Accelerator accelerator(mesh.data, {.cpu = true});
    auto stock = seeded([] { return StockGpt(); });
    auto split = seeded([&] { return SplitGpt(mesh.tensor); });
    torch::optim::AdamW own(split->parameters(), torch::optim::AdamWOptions(1e-2));
    torch::optim::AdamW reference(stock->parameters(), torch::optim::AdamWOptions(1e-2));
    auto [model, optimizer] = accelerator.prepare(split, own);
    for (uint64_t step = 0; step < 20; ++step) {
      CAPTURE(step);
      const at::Tensor ids = tokens({4, 4}, step, 12), next = tokens({4, 4}, step + 50, 12);
      const auto rows = [&](const at::Tensor& batch) { return batch.narrow(1, 2 * mesh.data.rank(), 2); };
      optimizer.zero_grad();
      const at::Tensor hidden = model(rows(ids));
      accelerator.backward(vocab_parallel_linear_cross_entropy(hidden, split->embed->weight, rows(next), mesh.tensor));
      const at::Tensor norm = clip_split_grad_norm_(split->parameters(), 0.5, mesh.tensor);
      optimizer.step();
      reference.zero_grad();
      stock->loss(ids, next).backward();
      const double expected = torch::nn::utils::clip_grad_norm_(stock->parameters(), 0.5);
      CHECK(norm.item<double>() == doctest::Approx(expected).epsilon(1e-12));
      reference.step();
    }
    check_same_state(split, stock, 1e-11);
    accelerator.check_synchronized(model);
  });
}

TEST_CASE("the norm of split gradients counts every element once, for every norm") {
  run_threads(2, [](const Group& group) {
    auto stock = seeded([] { return StockMlp(); });
    auto split = seeded([&] { return SplitMlp(group); });
    for (const double p : {1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()}) {
      CAPTURE(p);
      split->zero_grad();
      stock->zero_grad();
      split(numbers({3, 6}, 1)).pow(2).sum().backward();
      stock(numbers({3, 6}, 1)).pow(2).sum().backward();
      const at::Tensor norm = clip_split_grad_norm_(split->parameters(), 0.1, group, p);
      const double expected = torch::nn::utils::clip_grad_norm_(stock->parameters(), 0.1, p);
      CHECK(norm.item<double>() == doctest::Approx(expected).epsilon(1e-12));
      check_same_gradients(split, stock);
    }
    CHECK(refused([&] { clip_split_grad_norm_(split->parameters(), -1, group); }) != "no error");
  });
}

TEST_CASE("an Accelerator over ranks with different parts refuses the model") {
  run_threads(2, [](const Group& world) {
    Accelerator accelerator(world, {.cpu = true});
    auto split = seeded([&] { return SplitMlp(world.duplicate()); });
    CHECK(
        refused([&] { std::ignore = accelerator.prepare(split); }) ==
        "prepare: up.weight is a part of a tensor parallel layer, and ranks 0 and 1 of this Accelerator have different "
        "parts and must not average their gradients; set AcceleratorOptions::parallelism_config, and make the layers "
        "with accelerator.tensor_parallel_group()");
  });
}

TEST_CASE("sharding, clipping and checkpoints of split parameters are refused with the replacement") {
  run_threads(4, [](const Group& world) {
    const SquareMesh mesh(world);
    auto split = seeded([&] { return SplitMlp(mesh.tensor); });
    {
      Accelerator sharded(mesh.data, {.cpu = true, .sharding = accelerate::ShardingStrategy::full_shard});
      CHECK(refused([&] { std::ignore = sharded.prepare(split); }) ==
            "prepare: up.weight is a part of a tensor parallel layer, and sharding is full_shard, for which the "
            "Accelerator must know the tensor parallel group; set AcceleratorOptions::parallelism_config, or use "
            "no_shard");
    }
    Accelerator accelerator(mesh.data, {.cpu = true});
    auto model = accelerator.prepare(split);
    accelerator.backward(model(numbers({2, 6}, 1)).sum());
    const testing::TemporaryFolder folder;
    const std::string part =
        fmt::format("a parameter is part {} of 2 of a tensor parallel layer, and ", mesh.tensor.rank() + 1);
    const std::string files =
        "files would contain this part only; use nn::whole_state_dict() and nn::load_whole_state_dict()";
    CHECK(refused([&] { accelerator.clip_grad_norm_(split->parameters(), 1); }) ==
          "clip_grad_norm_: " + part + "the norm would lack the other parts; use nn::clip_split_grad_norm_()");
    CHECK(refused([&] { accelerator.save_state(folder.path); }) == "save_state: " + part + files);
    CHECK(refused([&] { accelerator.load_state(folder.path); }) == "load_state: " + part + files);
    CHECK(refused([&] { accelerator.save_model(model, folder.path); }) == "save_model: " + part + files);
    CHECK(refused([&] { accelerator.load_model(model, folder.path); }) == "load_model: " + part + files);
    const auto whole = seeded([] { return StockMlp(); });
    auto other = accelerator.prepare(whole);
    CHECK_NOTHROW(accelerator.save_model(other, folder.path));
  });
}
