// SPDX-License-Identifier: Apache-2.0
// Loads a sharded checkpoint of Hugging Face Accelerate's FSDP: each rank reads the elements that it keeps. Ranks as
// threads.
#include "tests/testing.hpp"
//
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "accelerate/accelerate.hpp"
#include "accelerate/checkpoint/read.hpp"
#include "tests/archive/dcp_files.hpp"
#include "tests/checkpoint/folder.hpp"
#include "tests/sharding/counting_allocator.hpp"
#include "tests/sharding/ranks.hpp"

// Named, because other files that are compiled together have functions of the same names.
namespace fsdp_checkpoint_testing {

namespace fs = std::filesystem;
using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using accelerate::ShardingStrategy;
using dcp_files::Builder;
using dcp_files::Sizes;
using sharding_testing::with_ranks;
using testing::SharedFolder;

namespace {

constexpr int64_t kWidth = 128, kLayers = 12, kSavedRanks = 3;
constexpr int64_t kParameter = kWidth * kWidth * 4;

torch::Tensor saved_values(int64_t layer, double scale) {
  return (torch::arange(kWidth * kWidth, torch::kFloat).reshape({kWidth, kWidth}) + static_cast<double>(layer)) * scale;
}
std::string name_of(int64_t layer) { return std::to_string(layer) + ".weight"; }

// Rows are divided over the ranks as FSDP2 divides them.
void add_sharded(Builder& builder, const std::vector<std::string>& path, const torch::Tensor& values) {
  std::string name;
  for (const auto& key : path) name += (name.empty() ? "" : ".") + key;
  dcp_files::PickleItems chunks;
  int64_t rank = 0;
  for (const auto& part : values.chunk(kSavedRanks)) {
    const int64_t first = rank * ((kWidth + kSavedRanks - 1) / kSavedRanks);
    chunks.push_back(dcp_files::chunk({first, 0}, part.sizes().vec()));
    const auto* const data = part.const_data_ptr<float>();
    builder.add_item(name, {first, 0}, part.sizes().vec(), std::vector<float>(data, data + part.numel()),
                     "__" + std::to_string(rank++) + "_0.distcp");
  }
  builder.add(name, dcp_files::tensor(values.sizes().vec(), std::move(chunks)));
  builder.add_path(name, path);
}

void add_option(Builder& builder, const std::string& name, const dcp_files::PickleValue& value) {
  builder.add_value("optimizer.param_groups.0." + name, value);
  builder.add_path("optimizer.param_groups.0." + name, {"optimizer", "param_groups", "0", name});
}

void write_checkpoint(const fs::path& folder) {
  Builder model, optimizer;
  dcp_files::PickleItems names;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string name = name_of(layer);
    names.push_back(dcp_files::text(name));
    add_sharded(model, {"model", name}, saved_values(layer, 1.0 / 1024));
    add_sharded(optimizer, {"optimizer", "state", name, "exp_avg"}, saved_values(layer, 2.0));
    add_sharded(optimizer, {"optimizer", "state", name, "exp_avg_sq"}, saved_values(layer, 3.0));
    const std::string step = "optimizer.state." + name + ".step";
    optimizer.add(step, dcp_files::tensor({}, {dcp_files::chunk({}, {})}));
    optimizer.add_item(step, {}, {}, {4});
    optimizer.add_path(step, {"optimizer", "state", name, "step"});
  }
  add_option(optimizer, "params", dcp_files::list(std::move(names)));
  add_option(optimizer, "lr", 0.25);
  add_option(optimizer, "betas", dcp_files::tuple({0.5, 0.75}));
  add_option(optimizer, "eps", 0.125);
  add_option(optimizer, "weight_decay", 0.0);
  add_option(optimizer, "amsgrad", false);
  model.write(folder / "pytorch_model_fsdp_0");
  optimizer.write(folder / "optimizer_0");
}

torch::nn::Sequential layers() {
  torch::nn::Sequential net;
  for (int64_t i = 0; i < kLayers; ++i) {
    net->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
  }
  return net;
}

AcceleratorOptions with(ShardingStrategy strategy) {
  return {.cpu = true, .sharding = strategy, .fsdp_plugin = {.min_num_params = 1000}};
}

// Compares a checkpoint of this library with the one of FSDP.
void check_saved(const fs::path& folder) {
  const auto read = accelerate::checkpoint::read_checkpoint(folder, 0, c10::kCPU, "test");
  std::map<std::string, torch::Tensor> weights;
  for (const auto& [name, saved] : read.content.models.at(0)) {
    weights[name] = accelerate::state::whole_of(saved, read.elements);
  }
  REQUIRE(weights.size() == kLayers);
  REQUIRE(read.content.optimizers.size() == 1);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    CAPTURE(layer);
    CHECK(weights[name_of(layer)].equal(saved_values(layer, 1.0 / 1024)));
    std::map<std::string, torch::Tensor> state;
    for (const auto& [name, saved] : read.content.optimizers[0].tensors.at(layer)) {
      state[name] = accelerate::state::whole_of(saved, read.elements);
    }
    CHECK(state["exp_avg"].equal(saved_values(layer, 2.0)));
    CHECK(state["exp_avg_sq"].equal(saved_values(layer, 3.0)));
    CHECK(state["step"].item<double>() == 4);
  }
}

}  // namespace

TEST_CASE("a sharded checkpoint of FSDP is loaded on any number of ranks, without memory for whole tensors") {
  using enum ShardingStrategy;
  const SharedFolder folder;
  write_checkpoint(folder.path / "fsdp");
  struct Case {
    int64_t ranks;
    ShardingStrategy strategy;
  };
  for (const auto& [ranks, strategy] : {Case{1, no_shard}, Case{2, no_shard}, Case{2, shard_optim_op},
                                        Case{2, shard_grad_op}, Case{2, full_shard}, Case{4, full_shard}}) {
    CAPTURE(ranks);
    CAPTURE(strategy_name(strategy));
    const fs::path again =
        folder.path / ("again_" + std::to_string(ranks) + std::to_string(static_cast<int>(strategy)));
    const sharding_testing::CountedMemory counted;
    auto& memory = counted.counts;
    with_ranks(ranks, with(strategy), [&](Accelerator& accelerator) {
      auto net = layers();
      torch::optim::AdamW adamw(net->parameters());
      auto [model, optimizer] = accelerator.prepare(net, adamw);
      accelerator.backward(model(torch::ones({2, kWidth})).square().mean());
      optimizer.step();
      optimizer.zero_grad();
      // The largest memory of all ranks in a call, above that between calls.
      const auto extra = [&](const std::function<void()>& call) {
        accelerator.wait_for_everyone();
        const int64_t held = memory.held;
        if (accelerator.process_index() == 0) memory.peak = held;
        accelerator.wait_for_everyone();
        call();
        accelerator.wait_for_everyone();
        return memory.peak - held;
      };
      // Whole units are exchanged one after another, from a copy of the parts.
      CHECK(extra([&] { accelerator.load_state(folder.path / "fsdp"); }) < 2 * kParameter);
      const fs::path model_folder = folder.path / "fsdp" / "pytorch_model_fsdp_0";
      CHECK(extra([&] { accelerator.load_model(model, model_folder); }) < 2 * kParameter);
      accelerator.save_state(again, {.durable = false});
    });
    check_saved(again);
  }
}

TEST_CASE("a module without memory is loaded from a sharded checkpoint of FSDP") {
  const SharedFolder folder;
  write_checkpoint(folder.path / "fsdp");
  for (const int64_t ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    const sharding_testing::CountedMemory counted;
    auto& memory = counted.counts;
    int64_t held = 0;
    with_ranks(ranks, with(ranks == 1 ? ShardingStrategy::no_shard : ShardingStrategy::full_shard),
               [&](Accelerator& accelerator) {
                 if (accelerator.process_index() == 0) memory.peak = held = memory.held;
                 accelerator.wait_for_everyone();
                 auto net = accelerate::init_empty_weights([] { return layers(); });
                 auto model = accelerator.prepare(net);
                 accelerator.load_model(model, folder.path / "fsdp");
                 accelerator.wait_for_everyone();
                 if (accelerator.process_index() == 0) {
                   CHECK(memory.peak - held < (kLayers + 2 * ranks + 2) * kParameter);
                 }
                 const auto whole = Accelerator::summon_full_params(model);
                 const auto parameters = net->parameters();
                 for (int64_t layer = 0; layer < kLayers; ++layer) {
                   CHECK(parameters[static_cast<size_t>(layer)].equal(saved_values(layer, 1.0 / 1024)));
                 }
               });
  }
}

}  // namespace fsdp_checkpoint_testing
