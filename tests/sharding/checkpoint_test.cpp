// SPDX-License-Identifier: Apache-2.0
// Checkpoints of which each rank writes its parts. Ranks as threads.
#include "tests/testing.hpp"
//
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "accelerate/accelerate.hpp"
#include "accelerate/archive/checkpoint_folder.hpp"
#include "accelerate/checkpoint/weights.hpp"
#include "tests/checkpoint/folder.hpp"
#include "tests/refusal.hpp"
#include "tests/sharding/counting_allocator.hpp"
#include "tests/sharding/models.hpp"
#include "tests/sharding/ranks.hpp"
#include "tests/temporary_folder.hpp"

namespace {

namespace fs = std::filesystem;
using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using accelerate::ShardingStrategy;
using accelerate::StateDictType;
using sharding_testing::largest_difference;
using sharding_testing::loss_of;
using sharding_testing::model_cases;
using sharding_testing::ModelCase;
using sharding_testing::optimizer_cases;
using sharding_testing::OptimizerCase;
using sharding_testing::PreparedTraining;
using sharding_testing::with_ranks;
using testing::SharedFolder;

AcceleratorOptions with(ShardingStrategy strategy) {
  return {.cpu = true, .sharding = strategy, .fsdp_plugin = {.min_num_params = 30}};
}

std::set<std::string> files_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

}  // namespace

TEST_CASE("each rank writes its parts, and training continues on any number of ranks with any strategy") {
  using enum ShardingStrategy;
  struct Change {
    ShardingStrategy saving, loading;
    int64_t ranks_before, ranks_after;
  };
  for (const Change& change : {Change{full_shard, full_shard, 2, 2}, Change{full_shard, full_shard, 3, 2},
                               Change{full_shard, no_shard, 4, 1}, Change{full_shard, shard_grad_op, 2, 4},
                               Change{shard_grad_op, full_shard, 2, 3}, Change{shard_optim_op, full_shard, 3, 4},
                               Change{no_shard, full_shard, 2, 4}, Change{full_shard, shard_optim_op, 1, 3}}) {
    for (const ModelCase& of : model_cases()) {
      for (const OptimizerCase& optimizer_case : optimizer_cases(of)) {
        CAPTURE(strategy_name(change.saving));
        CAPTURE(strategy_name(change.loading));
        CAPTURE(change.ranks_before);
        CAPTURE(change.ranks_after);
        CAPTURE(of.name);
        CAPTURE(optimizer_case.name);
        const SharedFolder folder;
        std::vector<torch::Tensor> expected;
        with_ranks(change.ranks_before, with(change.saving), [&](Accelerator& accelerator) {
          PreparedTraining training(accelerator, of, optimizer_case);
          training.steps(0, 3);
          accelerator.save_state(folder.path / "c", {.durable = false});
          training.steps(3, 6);
          const auto values = training.values();
          if (accelerator.process_index() == 0) expected = values;
        });
        with_ranks(change.ranks_after, with(change.loading), [&](Accelerator& accelerator) {
          PreparedTraining training(accelerator, of, optimizer_case);
          training.steps(7, 8);  // values that the load must replace
          accelerator.load_state(folder.path / "c");
          training.steps(3, 6);
          accelerator.check_synchronized(training.model);
          CHECK(largest_difference(training.values(), expected) < 1e-12);
        });
      }
    }
  }
}

TEST_CASE("a checkpoint in parts has one file of tensors for each rank, and no file that looks like a whole model") {
  const SharedFolder folder;
  for (const bool is_async : {false, true}) {
    with_ranks(3, with(ShardingStrategy::full_shard), [&](Accelerator& accelerator) {
      PreparedTraining training(accelerator, model_cases()[0], optimizer_cases()[0]);
      training.steps(0, 2);
      accelerator.save_state(folder.path / "c", {.async = is_async});
      training.steps(2, 3);  // an asynchronous save has the values of its call
      accelerator.wait_for_checkpoint();
    });
    CHECK(files_in(folder.path / "c") == std::set<std::string>{"manifest.json", "optimizer.bin", "parts_0.safetensors",
                                                               "parts_1.safetensors", "parts_2.safetensors",
                                                               "random_states_0.pkl", "random_states_1.pkl",
                                                               "random_states_2.pkl"});
    CHECK(accelerate::archive::find_damage(folder.path / "c", /*verify=*/true) == std::nullopt);
    const auto reference = model_cases()[0].make();
    const auto stock = optimizer_cases()[0].make(reference->parameters());
    for (int64_t i = 0; i < 2; ++i) {
      stock->zero_grad();
      loss_of(reference->forward(model_cases()[0].inputs(i))).backward();
      stock->step();
    }
    const auto weights = accelerate::checkpoint::read_weights(folder.path / "c", "load");
    CHECK(weights.size() == 6);
    for (const auto& [name, tensor] : weights) {
      CAPTURE(name);
      CHECK(tensor.sub(reference->named_parameters()[name]).abs().max().item<double>() < 1e-12);
    }
  }
}

TEST_CASE("a changed byte in any file of a checkpoint in parts is found by one of the ranks, and nothing is loaded") {
  const SharedFolder folder;
  const auto place = folder.path / "c";
  with_ranks(3, with(ShardingStrategy::full_shard), [&](Accelerator& accelerator) {
    PreparedTraining training(accelerator, model_cases()[0], optimizer_cases()[0]);
    training.steps(0, 2);
    accelerator.save_state(place);
  });
  for (const std::string& name : files_in(place)) {
    if (name == "manifest.json") continue;  // see archive/manifest_test
    CAPTURE(name);
    std::fstream file(place / name, std::ios::binary | std::ios::in | std::ios::out);
    const auto flip_last_byte = [&] {
      file.seekg(-1, std::ios::end);
      const int byte = file.peek();
      file.seekp(-1, std::ios::end).put(static_cast<char>(byte ^ 1)).flush();
    };
    flip_last_byte();
    with_ranks(3, with(ShardingStrategy::full_shard), [&](Accelerator& accelerator) {
      PreparedTraining training(accelerator, model_cases()[0], optimizer_cases()[0]);
      const auto before = training.values();
      CHECK(testing::refusal([&] { accelerator.load_state(place); }).find(name + " has checksum ") !=
            std::string::npos);
      CHECK(largest_difference(training.values(), before) == 0);
    });
    flip_last_byte();
  }
  with_ranks(3, with(ShardingStrategy::full_shard), [&](Accelerator& accelerator) {
    PreparedTraining training(accelerator, model_cases()[0], optimizer_cases()[0]);
    accelerator.load_state(place);
  });
}

TEST_CASE("with full_state_dict rank 0 writes the files of unsharded training") {
  const SharedFolder folder;
  auto options = with(ShardingStrategy::full_shard);
  options.fsdp_plugin.state_dict_type = StateDictType::full_state_dict;
  with_ranks(2, options, [&](Accelerator& accelerator) {
    PreparedTraining training(accelerator, model_cases()[0], optimizer_cases()[0]);
    training.steps(0, 2);
    accelerator.save_state(folder.path / "c");
  });
  CHECK(files_in(folder.path / "c") == std::set<std::string>{"manifest.json", "model.safetensors", "optimizer.bin",
                                                             "random_states_0.pkl", "random_states_1.pkl"});
}

TEST_CASE("buffers, tied, frozen, empty and channels-last parameters are saved beside the parts") {
  const ModelCase of = sharding_testing::mixed_case();
  for (const int64_t ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    const SharedFolder folder;
    std::vector<torch::Tensor> expected;
    with_ranks(2, with(ShardingStrategy::full_shard), [&](Accelerator& accelerator) {
      PreparedTraining training(accelerator, of, optimizer_cases()[0]);
      training.steps(0, 3);
      accelerator.save_state(folder.path / "c", {.durable = false});
      const auto values = training.values();
      if (accelerator.process_index() == 0) expected = values;
    });
    CHECK(files_in(folder.path / "c").contains("whole_tensors.safetensors"));
    with_ranks(ranks, with(ranks == 1 ? ShardingStrategy::no_shard : ShardingStrategy::full_shard),
               [&](Accelerator& accelerator) {
                 PreparedTraining training(accelerator, of, optimizer_cases()[0]);
                 accelerator.load_state(folder.path / "c");
                 CHECK(largest_difference(training.values(), expected) == 0);
                 for (const auto& buffer : training.net->named_buffers()) {
                   if (buffer.key() == "norm.num_batches_tracked") CHECK(buffer.value().item<int64_t>() == 3);
                 }
                 PreparedTraining other(accelerator, of, optimizer_cases()[0]);
                 const auto loaded = accelerator.load_model(other.model, folder.path / "c");
                 CHECK(loaded == accelerate::prepared::LoadedModel{});
                 CHECK(largest_difference(other.values(), expected) == 0);
               });
  }
}

TEST_CASE("a load in a scope with whole parameters changes them") {
  const SharedFolder folder;
  with_ranks(2, with(ShardingStrategy::full_shard), [&](Accelerator& accelerator) {
    PreparedTraining training(accelerator, model_cases()[0], optimizer_cases()[0]);
    training.steps(0, 2);
    accelerator.save_state(folder.path / "c");
    const auto expected = training.values();
    training.steps(2, 4);
    {
      const auto whole = Accelerator::summon_full_params(training.model);
      accelerator.load_state(folder.path / "c");
      CHECK(largest_difference(training.net->parameters(), expected) == 0);
    }
    CHECK(largest_difference(training.values(), expected) == 0);
  });
}

TEST_CASE("a missing and a damaged file of a rank are errors, and nothing is loaded") {
  const SharedFolder folder;
  with_ranks(2, with(ShardingStrategy::full_shard), [&](Accelerator& accelerator) {
    PreparedTraining training(accelerator, model_cases()[0], optimizer_cases()[0]);
    training.steps(0, 2);
    accelerator.save_state(folder.path / "c");
    training.steps(2, 3);
    const auto before = training.values();
    const auto part = folder.path / "c" / "parts_1.safetensors";
    if (accelerator.process_index() == 0) fs::rename(part, folder.path / "aside");
    accelerator.wait_for_everyone();
    const auto text = testing::refusal([&] { accelerator.load_state(folder.path / "c"); });
    CHECK_MESSAGE(text.find("is incomplete or damaged: parts_1.safetensors is missing") != std::string::npos, text);
    CHECK(largest_difference(training.values(), before) == 0);
    if (accelerator.process_index() == 0) {
      CHECK(testing::refusal([&] {
              (void)accelerate::checkpoint::read_weights(folder.path / "c", "load");
            }).find("parts_1.safetensors is missing") != std::string::npos);
      fs::rename(folder.path / "aside", part);
    }
  });
}

TEST_CASE("checkpoints need no memory for whole tensors, and save_model() that of one parameter") {
  constexpr int64_t kWidth = 128, kLayers = 16;
  constexpr int64_t kParameter = kWidth * kWidth * 8;
  const ModelCase of{"wide",
                     [] {
                       torch::nn::Sequential layers;
                       for (int64_t i = 0; i < kLayers; ++i) {
                         layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
                       }
                       auto net = std::make_shared<sharding_testing::AnyNet>(
                           [layers](const torch::Tensor& x) mutable { return layers->forward(x); });
                       net->register_module("layers", layers);
                       net->to(torch::kDouble);
                       return net;
                     },
                     [](int64_t) {
                       return torch::ones({2, kWidth}, torch::kDouble);
                     }};
  const SharedFolder folder;
  const sharding_testing::CountedMemory counted;
  auto& memory = counted.counts;
  auto options = with(ShardingStrategy::full_shard);
  options.fsdp_plugin.min_num_params = 1000;
  with_ranks(2, options, [&](Accelerator& accelerator) {
    PreparedTraining training(accelerator, of, optimizer_cases()[0]);
    training.steps(0, 1);
    training.optimizer.zero_grad();
    // The largest memory of both ranks in a call, above that between calls.
    const auto extra = [&](const std::function<void()>& call) {
      accelerator.wait_for_everyone();
      const int64_t held = memory.held;
      if (accelerator.process_index() == 0) memory.peak = held;
      accelerator.wait_for_everyone();
      call();
      accelerator.wait_for_everyone();
      return memory.peak - held;
    };
    CHECK(extra([&] { accelerator.save_state(folder.path / "c", {.durable = false}); }) < kParameter);
    CHECK(extra([&] { accelerator.load_state(folder.path / "c"); }) < kParameter);
    // The measured peak is exactly three parameters; one more is allowed.
    CHECK(extra([&] { accelerator.save_model(training.model, folder.path / "model"); }) <= 4 * kParameter);
    CHECK(extra([&] { accelerator.load_model(training.model, folder.path / "model"); }) < kParameter);
    accelerator.wait_for_everyone();
  });
}

TEST_CASE("save_model() of a sharded model writes the bytes of the unsharded one") {
  using enum ShardingStrategy;
  const ModelCase tied{"tied transformer", sharding_testing::tied_transformer, {}};
  for (const ModelCase& of : {tied, sharding_testing::mixed_case()}) {
    for (const std::string file_size : {"1KB", "10GB"}) {
      CAPTURE(of.name);
      CAPTURE(file_size);
      const SharedFolder folder;
      const auto save = [&](int64_t ranks, ShardingStrategy strategy, const std::string& name) {
        with_ranks(ranks, with(strategy), [&](Accelerator& accelerator) {
          auto model = accelerator.prepare(of.make());
          accelerator.save_model(model, folder.path / name, {.max_shard_size = file_size});
        });
      };
      save(1, no_shard, "whole");
      const auto names = files_in(folder.path / "whole");
      CHECK((names.size() > 2) == (file_size == "1KB"));
      for (const int64_t ranks : {2, 3}) {
        for (const auto strategy : {no_shard, full_shard, shard_grad_op}) {
          CAPTURE(ranks);
          CAPTURE(strategy_name(strategy));
          const std::string sharded = std::string(strategy_name(strategy)) + std::to_string(ranks);
          save(ranks, strategy, sharded);
          REQUIRE(files_in(folder.path / sharded) == names);
          for (const std::string& name : names) {
            CAPTURE(name);
            CHECK((testing::text_of(folder.path / sharded / name) == testing::text_of(folder.path / "whole" / name)));
          }
        }
      }
    }
  }
}
