// SPDX-License-Identifier: Apache-2.0
// Ranks as threads.
#include "tests/testing.hpp"
//
#include <functional>

#include "accelerate/accelerate.hpp"

namespace deferred_testing {
namespace {

void with_ranks(const accelerate::AcceleratorOptions& options,
                const std::function<void(accelerate::Accelerator&)>& check) {
  for (const int64_t ranks : {1, 2, 4}) {
    if (ranks % options.fsdp_plugin.dp_shard_size.value_or(1) != 0) continue;
    CAPTURE(ranks);
    accelerate::simulate(ranks, [&] {
      accelerate::Accelerator accelerator(options);
      check(accelerator);
    });
  }
}

}  // namespace
}  // namespace deferred_testing

#include "tests/deferred/preparing_cases.hpp"
#include "tests/sharding/counting_allocator.hpp"

namespace deferred_testing {

constexpr int64_t kWidth = 128, kLayers = 16, kRanks = 2;
constexpr int64_t kUnit = kWidth * kWidth * 4;

torch::nn::Sequential wide_layers() {
  torch::nn::Sequential layers;
  for (int64_t i = 0; i < kLayers; ++i) {
    layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
  }
  return layers;
}

/// Runs on two ranks with full_shard. Returns the peak of the memory of both during `run`, and their memory after it.
struct Memory {
  int64_t peak = 0, held = 0;
};
Memory memory_of_ranks(const std::function<void(Accelerator&, const std::function<void()>& begin)>& run) {
  const sharding_testing::CountedMemory counted;
  auto& counts = counted.counts;
  Memory memory;
  accelerate::simulate(kRanks, [&] {
    Accelerator accelerator(
        {.cpu = true, .sharding = ShardingStrategy::full_shard, .fsdp_plugin = {.min_num_params = 1000}});
    int64_t before = 0;
    run(accelerator, [&] {
      accelerator.wait_for_everyone();
      before = counts.held;
      accelerator.wait_for_everyone();
      if (accelerator.process_index() == 0) counts.peak = counts.held;
      accelerator.wait_for_everyone();
    });
    accelerator.wait_for_everyone();
    if (accelerator.process_index() == 0) memory = {counts.peak - before, counts.held - before};
    accelerator.wait_for_everyone();
  });
  return memory;
}

TEST_CASE("with full_shard, preparing holds the parts and about two units of each rank") {
  std::shared_ptr<void> model[kRanks];
  const Memory memory = memory_of_ranks([&](Accelerator& accelerator, const std::function<void()>& begin) {
    begin();
    auto net = accelerate::init_empty_weights(wide_layers);
    for (const auto& parameter : net->parameters()) CHECK(is_deferred(parameter));
    model[accelerator.process_index()] =
        std::make_shared<accelerate::PreparedModel<torch::nn::SequentialImpl>>(accelerator.prepare(net));
  });
  CAPTURE(memory.peak);
  CHECK(memory.held >= kLayers * kUnit);
  CHECK(memory.held < (kLayers + 2) * kUnit);
  CHECK(memory.peak < (kLayers + 2 * kRanks + 2) * kUnit);
}

TEST_CASE("a checkpoint is loaded into a module built without memory with the memory of the parts") {
  const testing::SharedFolder folder;
  accelerate::simulate(1, [&] {
    Accelerator accelerator({.cpu = true});
    accelerator.save_model(accelerator.prepare(wide_layers()), folder.path);
  });
  std::shared_ptr<void> model[kRanks];
  const Memory memory = memory_of_ranks([&](Accelerator& accelerator, const std::function<void()>& begin) {
    auto net = accelerate::init_empty_weights(wide_layers);
    auto prepared = accelerator.prepare(net);
    begin();
    CHECK(accelerator.load_model(prepared, folder.path) == accelerate::prepared::LoadedModel{});
    model[accelerator.process_index()] =
        std::make_shared<accelerate::PreparedModel<torch::nn::SequentialImpl>>(std::move(prepared));
  });
  CHECK(memory.peak < 2 * kRanks * kUnit);
}

}  // namespace deferred_testing
