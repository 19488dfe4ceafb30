// SPDX-License-Identifier: Apache-2.0
// Meshes and calls that are refused.
#include "tests/tensor_parallel/support.hpp"
//
#include <algorithm>
#include <limits>
#include <mutex>
#include <tuple>

#include "accelerate/accelerate.hpp"
#include "accelerate/base/log.hpp"
#include "tests/refusal.hpp"
#include "tests/temporary_folder.hpp"

using namespace tensor_parallel_testing;
using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using accelerate::comm::run_threads;

namespace {

std::string refused_mesh(const Group& world, const AcceleratorOptions& options) {
  return refused([&] { const Accelerator accelerator(world.duplicate(), options); });
}

}  // namespace

TEST_CASE("a mesh with another number of ranks, or without support, is refused") {
  run_threads(2, [](const Group& world) {
    CHECK(
        refused_mesh(world, {.cpu = true, .parallelism_config = {{.tp_size = 4}}}) ==
        "parallelism_config: pp_size 1 x dp_replicate_size 1 x dp_shard_size 1 x cp_size 1 x sp_size 1 x tp_size 4 is "
        "4 ranks, the job has 2; the product must be the world size");
    CHECK(refused_mesh(world, {.cpu = true, .parallelism_config = {{.sp_size = 2}}}) ==
          "parallelism_config: sp_size is 2, and DeepSpeed's sequence parallelism is not supported; set it to 1, and "
          "split the sequence with cp_size or with tensor parallel layers (sequence_dim)");
    CHECK(refused_mesh(world, {.cpu = true, .parallelism_config = {{.tp_size = 0}}}).find("tp_size is 0") !=
          std::string::npos);
    CHECK(refused_mesh(world, {.cpu = true,
                               .parallelism_config = {{.pp_size = 2}},
                               .sharding = accelerate::ShardingStrategy::full_shard}) ==
          "parallelism_config: dp_shard_size is 1, and sharding is full_shard; set dp_shard_size to the number of "
          "ranks that divide the model, or use no_shard");
    CHECK(
        refused_mesh(world, {.cpu = true, .parallelism_config = {{.cp_size = 2, .sp_size = 2}}}).find("sp_size is 2") !=
        std::string::npos);
    CHECK(
        refused_mesh(world, {.cpu = true, .parallelism_config = {{.tp_size = world.rank() + 1}}}) ==
        "parallelism_config: rank 0 has dp_replicate 2, rank 1 has tp 2; set the same sizes on all ranks, in code, in "
        "PARALLELISM_CONFIG_* variables, or in the config file");
  });
}

TEST_CASE("each rank logs the mesh and its coordinates") {
  std::mutex mutex;
  std::vector<std::string> lines;
  const auto level = accelerate::base::log_level();
  const auto handler = accelerate::base::set_log_handler([&](auto, std::string_view line) {
    const std::lock_guard lock(mutex);
    lines.emplace_back(line.substr(line.find("] ") + 2));
  });
  accelerate::base::set_log_level(accelerate::base::LogLevel::info);
  run_threads(2, [](const Group& world) {
    const Accelerator accelerator(world, {.cpu = true, .parallelism_config = {{.tp_size = 2}}});
  });
  accelerate::base::set_log_level(level);
  accelerate::base::set_log_handler(handler);
  std::ranges::sort(lines);
  CHECK(lines == std::vector<std::string>{"parallelism_config: tp 2; this rank: tp 0",
                                          "parallelism_config: tp 2; this rank: tp 1"});
}

TEST_CASE("layers of another group than the mesh's are refused") {
  run_threads(4, [](const Group& world) {
    Accelerator accelerator(world, {.cpu = true, .parallelism_config = {{.dp_replicate_size = 2, .tp_size = 2}}});
    auto of_world = seeded([&] { return SplitMlp(world.duplicate()); });
    CHECK(refused([&] { std::ignore = accelerator.prepare(of_world); }) ==
          fmt::format("prepare: up.weight is part {} of 4 of a tensor parallel layer, and this rank is {} of 2 in its "
                      "tensor parallel group; make the layers with accelerator.tensor_parallel_group()",
                      world.rank() + 1, world.rank() % 2 + 1));
  });
}

TEST_CASE("parameters that are not split must have the same names on all ranks of a tensor parallel group") {
  run_threads(2, [](const Group& world) {
    Accelerator accelerator(world, {.cpu = true, .parallelism_config = {{.tp_size = 2}}});
    torch::nn::Linear linear(2, 3 + world.rank());
    CHECK(refused([&] { std::ignore = accelerator.prepare(linear); }).find("weight") != std::string::npos);
  });
}

TEST_CASE("check_synchronized() compares the parameters of a tensor parallel group that are not split") {
  run_threads(2, [](const Group& world) {
    Accelerator accelerator(world, {.cpu = true, .parallelism_config = {{.tp_size = 2}}});
    auto module = seeded([&] { return SplitMlp(accelerator.tensor_parallel_group()); });
    const auto model = accelerator.prepare(module);
    accelerator.check_synchronized(model);
    const torch::NoGradGuard no_grad;
    module->down->bias.add_(static_cast<double>(world.rank()));
    CHECK(refused([&] { accelerator.check_synchronized(model); }).find("down.bias") != std::string::npos);
  });
}

TEST_CASE("save_state() refuses a state of split layers that it cannot join") {
  run_threads(2, [](const Group& world) {
    const testing::TemporaryFolder folder;
    const auto place = world.broadcast_bytes(folder.path.string());
    Accelerator accelerator(world,
                            {.cpu = true, .gradient_accumulation_steps = 2, .parallelism_config = {{.tp_size = 2}}});
    auto module = seeded([&] { return SplitMlp(accelerator.tensor_parallel_group()); });
    auto model = accelerator.prepare(module);
    {
      const auto scope = accelerator.accumulate(model);
      accelerator.backward(model(numbers({2, 6}, 1)).sum());
    }
    CHECK(refused([&] { accelerator.save_state(place); })
              .find("the accumulation window is open, and gradients of tensor parallel layers are not saved; save "
                    "where sync_gradients() is true") != std::string::npos);
    world.barrier();
  });
}

TEST_CASE("files of stages that are no Pipeline are refused, because one rank would write its own layers") {
  run_threads(2, [](const Group& world) {
    Accelerator accelerator(world, {.cpu = true, .parallelism_config = {{.pp_size = 2}}});
    torch::nn::Linear stage(2, 2);
    const auto model = accelerator.prepare(stage);
    const std::string reason =
        ": with pp_size 2 every rank of a pipeline has other layers, but model is not an nn::Pipeline, so the files "
        "would contain only the layers of one rank; make it an nn::Pipeline, or save its modules on each rank";
    CHECK(refused([&] { accelerator.save_state("c"); }) == "save_state" + reason);
    CHECK(refused([&] { accelerator.save_model(model, "c"); }) == "save_model" + reason);
  });
}

TEST_CASE("LBFGS is refused for split layers") {
  run_threads(2, [](const Group& world) {
    Accelerator accelerator(world, {.cpu = true, .parallelism_config = {{.tp_size = 2}}});
    auto module = seeded([&] { return SplitMlp(accelerator.tensor_parallel_group()); });
    torch::optim::LBFGS optimizer(module->parameters());
    CHECK(refused([&] { std::ignore = accelerator.prepare(optimizer); }) ==
          "prepare: torch::optim::LBFGS combines all elements of the parameters, and this rank has parts of tensor "
          "parallel layers; use an optimizer that steps on each element");
  });
}

TEST_CASE("clip_grad_norm_() with an infinite limit measures split layers and changes nothing") {
  run_threads(2, [](const Group& world) {
    Accelerator accelerator(world, {.cpu = true, .parallelism_config = {{.tp_size = 2}}});
    auto module = seeded([&] { return SplitMlp(accelerator.tensor_parallel_group()); });
    auto model = accelerator.prepare(module);
    accelerator.backward(model(numbers({2, 6}, 1)).sum() * 1e300);
    const auto before = module->up->weight.grad().clone();
    const auto norm = accelerator.clip_grad_norm_(model, std::numeric_limits<double>::infinity());
    CHECK(norm.template item<double>() > 0);
    CHECK(at::equal(module->up->weight.grad(), before));
  });
}

TEST_CASE("clip_grad_norm_() names a split parameter whose gradient is not finite") {
  run_threads(2, [](const Group& world) {
    Accelerator accelerator(world, {.cpu = true, .parallelism_config = {{.tp_size = 2}}});
    auto module = seeded([&] { return SplitMlp(accelerator.tensor_parallel_group()); });
    auto model = accelerator.prepare(module);
    accelerator.backward(model(numbers({2, 6}, 1)).sum() * std::numeric_limits<double>::infinity());
    const auto text = testing::refusal([&] { accelerator.clip_grad_norm_(model, 1, 2, true); });
    CHECK(text.find("clip_grad_norm_: the norm of the gradients is ") != std::string::npos);
    CHECK(text.find(" gradients are not finite, the first that of up.weight") != std::string::npos);
  });
}

TEST_CASE("with fp16 the ranks of a tensor parallel group skip a step together") {
  run_threads(2, [](const Group& world) {
    Accelerator accelerator(
        world, {.cpu = true, .mixed_precision = accelerate::Precision::fp16, .parallelism_config = {{.tp_size = 2}}});
    auto module = seeded([&] { return SplitMlp(accelerator.tensor_parallel_group()); });
    auto [model, optimizer] = accelerator.prepare(module, torch::optim::SGD(module->parameters(), 0.1));
    for (const bool overflows : {true, false}) {
      optimizer.zero_grad();
      accelerator.backward(model(numbers({2, 6}, 1)).sum());
      if (overflows && world.rank() == 1) {
        module->up->weight.mutable_grad().fill_(std::numeric_limits<double>::infinity());
      }
      optimizer.step();
      CHECK(accelerator.optimizer_step_was_skipped() == overflows);
    }
  });
}
