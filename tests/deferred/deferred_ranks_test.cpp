// SPDX-License-Identifier: Apache-2.0
// Runs on real processes; the launcher selects the backend.
#include "tests/testing.hpp"
//
#include <functional>

#include "accelerate/accelerate.hpp"
#include "tests/world.hpp"

namespace deferred_testing {
namespace {

void with_ranks(const accelerate::AcceleratorOptions& options,
                const std::function<void(accelerate::Accelerator&)>& check) {
  if (testing::world().size() % options.fsdp_plugin.dp_shard_size.value_or(1) != 0) return;
  accelerate::Accelerator accelerator(testing::world(), options);
  check(accelerator);
}

}  // namespace
}  // namespace deferred_testing

#include "tests/deferred/preparing_cases.hpp"
#include "tests/deferred/resident_memory.hpp"

namespace deferred_testing {

// Files are mapped, so pages of the file that this process read are part of its memory: up to 2 MiB at both ends of a
// range, if the system caches the file in huge pages.
TEST_CASE("each rank reads only its ranges of the file of a model") {
  if (testing::world().size() == 1) return;
  constexpr int64_t kWidth = 4096, kLayers = 2;
  constexpr int64_t kBytes = kLayers * kWidth * kWidth * 4;
  const testing::SharedFolder folder(testing::world());
  const auto build = [] {
    torch::nn::Sequential layers;
    for (int64_t i = 0; i < kLayers; ++i) {
      layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
    }
    return layers;
  };
  if (testing::world().rank() == 0) {
    const auto net = build();
    accelerate::checkpoint::NamedTensors tensors;
    for (const auto& parameter : net->named_parameters()) tensors.emplace_back(parameter.key(), parameter.value());
    accelerate::checkpoint::save_weights(folder.path, tensors, {}, "test");
  }
  testing::world().barrier();
  Accelerator accelerator(testing::world(), {.cpu = true, .sharding = ShardingStrategy::full_shard});
  auto net = accelerate::init_empty_weights(build);
  auto model = accelerator.prepare(net);
  const int64_t part = kBytes / accelerator.num_processes();
  const int64_t before = testing::start_peak();
  CHECK(accelerator.load_model(model, folder.path) == accelerate::prepared::LoadedModel{});
  MESSAGE("load_model(): peak ", testing::peak_bytes() - before, " bytes");
  CHECK(testing::peak_bytes() - before < part + kBytes / 6);
}

}  // namespace deferred_testing
