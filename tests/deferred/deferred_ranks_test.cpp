// SPDX-License-Identifier: Apache-2.0
// Runs on real processes; the launcher selects the backend.
#include "tests/testing.hpp"
//
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/accelerate.hpp"
#include "tests/archive/dcp_files.hpp"
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
namespace {

constexpr int64_t kWidth = 4096, kLayers = 2;
constexpr int64_t kBytes = kLayers * kWidth * kWidth * 4;

torch::nn::Sequential wide_net() {
  torch::nn::Sequential layers;
  for (int64_t i = 0; i < kLayers; ++i) {
    layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
  }
  return layers;
}

// The file of a model.
void write_model(const std::filesystem::path& folder) {
  const auto net = wide_net();
  accelerate::checkpoint::NamedTensors tensors;
  for (const auto& parameter : net->named_parameters()) tensors.emplace_back(parameter.key(), parameter.value());
  accelerate::checkpoint::save_weights(folder, tensors, {}, "test");
}

// A folder of torch.distributed.checkpoint, to which three ranks wrote.
void write_dcp(const std::filesystem::path& folder) {
  dcp_files::Builder builder;
  const dcp_files::Sizes whole{kWidth, kWidth};
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string name = std::to_string(layer) + ".weight";
    dcp_files::PickleItems chunks;
    for (int64_t rank = 0; rank < 3; ++rank) {
      const int64_t first = rank * kWidth / 3, rows = (rank + 1) * kWidth / 3 - first;
      chunks.push_back(dcp_files::chunk({first, 0}, {rows, kWidth}));
      builder.add_item(name, {first, 0}, {rows, kWidth}, std::vector<float>(static_cast<size_t>(rows * kWidth), 0.5F),
                       "__" + std::to_string(rank) + "_0.distcp");
    }
    builder.add(name, dcp_files::tensor(whole, std::move(chunks)));
  }
  builder.write(folder);
}

// Files are mapped, so pages of the file that this process read are part of its memory: up to 2 MiB at both ends of a
// range, if the system caches the file in huge pages.
void check_reads_only_its_ranges(const std::function<void(const std::filesystem::path&)>& write) {
  if (testing::world().size() == 1) return;
  const testing::SharedFolder folder(testing::world());
  if (testing::world().rank() == 0) write(folder.path);
  testing::world().barrier();
  Accelerator accelerator(testing::world(), {.cpu = true, .sharding = ShardingStrategy::full_shard});
  auto net = accelerate::init_empty_weights([] { return wide_net(); });
  auto model = accelerator.prepare(net);
  const int64_t part = kBytes / accelerator.num_processes();
  const int64_t before = testing::start_peak();
  CHECK(accelerator.load_model(model, folder.path) == accelerate::prepared::LoadedModel{});
  MESSAGE("load_model(): peak ", testing::peak_bytes() - before, " bytes");
  CHECK(testing::peak_bytes() - before < part + kBytes / 6);
}

}  // namespace

TEST_CASE("each rank reads only its ranges of the file of a model") { check_reads_only_its_ranges(write_model); }

TEST_CASE("each rank reads only its ranges of the files of torch.distributed.checkpoint") {
  check_reads_only_its_ranges(write_dcp);
}

}  // namespace deferred_testing
