// SPDX-License-Identifier: Apache-2.0
// Checkpoints of averages of sharded weights. Ranks as threads.
#include "tests/testing.hpp"
//
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/accelerate.hpp"
#include "accelerate/archive/checkpoint_folder.hpp"
#include "accelerate/optim/ema.hpp"
#include "tests/checkpoint/folder.hpp"
#include "tests/refusal.hpp"
#include "tests/sharding/models.hpp"
#include "tests/sharding/ranks.hpp"

namespace {

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using accelerate::ShardingStrategy;
using accelerate::StateDictType;
using accelerate::optim::ExponentialMovingAverage;
using sharding_testing::largest_difference;
using sharding_testing::ModelCase;
using sharding_testing::with_ranks;
using testing::SharedFolder;

AcceleratorOptions sharded_by(ShardingStrategy strategy, StateDictType type = StateDictType::sharded_state_dict) {
  return {.cpu = true, .sharding = strategy, .fsdp_plugin = {.min_num_params = 30, .state_dict_type = type}};
}

std::vector<ModelCase> averaged_models() {
  auto cases = sharding_testing::model_cases();
  cases.push_back(sharding_testing::mixed_case());
  cases.back().make = [] {
    auto net = sharding_testing::mixed_net();
    net->eval();  // the statistics of BatchNorm would depend on the number of ranks
    return net;
  };
  return cases;
}

/// A training with a registered average of its weights and buffers.
struct AveragedTraining {
  AveragedTraining(Accelerator& accelerator, const ModelCase& of)
      : training(accelerator, of, sharding_testing::optimizer_cases()[0]),
        average(training.model, {.decay = 0.8, .use_buffers = true}) {
    accelerator.register_for_checkpointing(average);
  }
  void steps(int64_t from, int64_t to) {
    training.steps(from, to, [this] { average.update(); });
  }
  /// The whole averages. Collective.
  std::vector<torch::Tensor> values() {
    const auto swapped = average.average_parameters();
    auto list = training.values();
    for (const auto& buffer : training.net->buffers()) list.push_back(buffer.clone());
    return list;
  }

  sharding_testing::PreparedTraining training;
  ExponentialMovingAverage average;
};

}  // namespace

TEST_CASE("registered averages are saved in parts, and continue on any number of ranks with any strategy") {
  using enum ShardingStrategy;
  using enum StateDictType;
  struct Change {
    ShardingStrategy saving, loading;
    int64_t ranks_before, ranks_after;
    StateDictType type = sharded_state_dict;
  };
  for (const Change& change :
       {Change{full_shard, full_shard, 2, 2}, Change{full_shard, full_shard, 4, 3}, Change{full_shard, no_shard, 3, 1},
        Change{no_shard, full_shard, 1, 4}, Change{full_shard, shard_grad_op, 2, 4},
        Change{shard_optim_op, full_shard, 3, 2}, Change{full_shard, full_shard, 2, 3, full_state_dict}}) {
    for (const ModelCase& of : averaged_models()) {
      CAPTURE(strategy_name(change.saving));
      CAPTURE(strategy_name(change.loading));
      CAPTURE(change.ranks_before);
      CAPTURE(change.ranks_after);
      CAPTURE(of.name);
      const SharedFolder folder;
      std::vector<torch::Tensor> saved, expected;
      with_ranks(change.ranks_before, sharded_by(change.saving, change.type), [&](Accelerator& accelerator) {
        AveragedTraining training(accelerator, of);
        training.steps(0, 3);
        accelerator.save_state(folder.path / "c", {.durable = false});
        const auto at_save = training.values();
        training.steps(3, 5);
        const auto at_end = training.values();
        if (accelerator.process_index() == 0) saved = at_save, expected = at_end;
      });
      with_ranks(change.ranks_after, sharded_by(change.loading), [&](Accelerator& accelerator) {
        AveragedTraining training(accelerator, of);
        training.steps(7, 8);  // averages that the load must replace
        accelerator.load_state(folder.path / "c");
        CHECK(largest_difference(training.values(), saved) == 0);
        CHECK(training.average.updates() == 3);
        training.steps(3, 5);
        CHECK(largest_difference(training.values(), expected) < 1e-12);
      });
    }
  }
}

TEST_CASE("averages of a model that is sharded over data and context parallel ranks continue on other ranks") {
  AcceleratorOptions meshed = sharded_by(ShardingStrategy::full_shard);
  meshed.parallelism_config = {{.dp_shard_size = 2, .cp_size = 2}};
  for (const ModelCase& of : averaged_models()) {
    CAPTURE(of.name);
    const SharedFolder folder;
    std::vector<torch::Tensor> saved, expected;
    with_ranks(4, meshed, [&](Accelerator& accelerator) {
      AveragedTraining training(accelerator, of);
      training.steps(0, 3);
      accelerator.save_state(folder.path / "c", {.durable = false});
      const auto at_save = training.values();
      training.steps(3, 5);
      const auto at_end = training.values();
      if (accelerator.process_index() == 0) saved = at_save, expected = at_end;
    });
    for (const int64_t ranks : {1, 3}) {
      CAPTURE(ranks);
      with_ranks(ranks, sharded_by(ShardingStrategy::full_shard), [&](Accelerator& accelerator) {
        AveragedTraining training(accelerator, of);
        CHECK(largest_difference(training.values(), saved) > 1e-3);
        accelerator.load_state(folder.path / "c");
        CHECK(largest_difference(training.values(), saved) == 0);
        training.steps(3, 5);
        CHECK(largest_difference(training.values(), expected) < 1e-12);
      });
    }
  }
}

TEST_CASE("each element of registered averages is in one file, and replicas do not write theirs") {
  const ModelCase of = sharding_testing::model_cases()[0];
  for (const int64_t replicas : {1, 2}) {
    CAPTURE(replicas);
    const SharedFolder folder;
    AcceleratorOptions options =
        sharded_by(replicas == 1 ? ShardingStrategy::full_shard : ShardingStrategy::hybrid_shard);
    if (replicas > 1) options.fsdp_plugin.dp_shard_size = 2;
    int64_t elements = 0;
    with_ranks(4, options, [&](Accelerator& accelerator) {
      AveragedTraining training(accelerator, of);
      training.steps(0, 2);
      accelerator.save_state(folder.path / "c", {.durable = false});
      const auto expected = training.values();
      if (accelerator.process_index() == 0) {
        for (const auto& value : expected) elements += value.numel();
      }
    });
    uint64_t saved = 0;
    for (const auto& range : accelerate::archive::manifest_of(folder.path / "c", "test").ranges) {
      if (range.tensor.starts_with("custom.0/module.")) saved += range.end - range.begin;
    }
    CHECK(saved == static_cast<uint64_t>(elements));
    with_ranks(2, sharded_by(ShardingStrategy::full_shard), [&](Accelerator& accelerator) {
      AveragedTraining training(accelerator, of);
      accelerator.load_state(folder.path / "c");
      CHECK(training.average.updates() == 2);
    });
  }
}

TEST_CASE("float32 averages of bfloat16 parameters are saved in parts, also with parameters on the host") {
  for (const bool cpu_offload : {false, true}) {
    CAPTURE(cpu_offload);
    const SharedFolder folder;
    AcceleratorOptions options = sharded_by(ShardingStrategy::full_shard);
    options.precision_policy = accelerate::precision::pure_bf16();
    options.fsdp_plugin.cpu_offload = cpu_offload;
    const ModelCase of{"MLP",
                       [] {
                         auto net = sharding_testing::mlp();
                         net->to(torch::kFloat);
                         return net;
                       },
                       [](int64_t step) {
                         return sharding_testing::waves({12, 7}, static_cast<double>(step)).to(torch::kBFloat16);
                       }};
    with_ranks(2, options, [&](Accelerator& accelerator) {
      AveragedTraining training(accelerator, of);
      training.steps(0, 3);
      accelerator.save_state(folder.path / "c", {.durable = false});
      std::vector<at::Tensor> saved;
      for (const at::Tensor& average : training.average.averages()) saved.push_back(average.clone());
      training.steps(3, 5);
      accelerator.load_state(folder.path / "c");
      const auto loaded = training.average.averages();
      for (size_t i = 0; i < saved.size(); ++i) {
        CHECK((loaded[i].scalar_type() == torch::kFloat));
        CHECK(loaded[i].equal(saved[i]));
      }
    });
  }
}

namespace {

/// An object of the user: the sum of the values that each weight had.
template <typename Model>
struct Sums {
  using Dict = torch::OrderedDict<std::string, at::Tensor>;
  explicit Sums(Model of) : model(std::move(of)), sums(model.parameter_shards()) {
    for (auto& sum : sums) sum.value = torch::zeros_like(sum.value.detach());
  }
  void add() {
    const auto now = model.parameter_shards();
    for (size_t i = 0; i < sums.size(); ++i) sums[i].value.add_(now[i].value.detach());
  }
  Dict state_dict() {
    Dict state;
    for (const auto& sum : sums) state.insert(sum.name, sum.value);
    return state;
  }
  void load_state_dict(const Dict& state) {
    for (auto& sum : sums) sum.value.copy_(state[sum.name]);
  }
  std::vector<accelerate::state::ParameterShard> state_shards() { return sums; }
  void load_state_shards(const Dict& state) { load_state_dict(state); }

  Model model;
  std::vector<accelerate::state::ParameterShard> sums;
};

}  // namespace

TEST_CASE("an object of the user with elements of sharded weights is saved in parts, too") {
  const SharedFolder folder;
  const auto on_ranks = [&](int64_t ranks, ShardingStrategy strategy, const auto& use) {
    with_ranks(ranks, sharded_by(strategy), [&](Accelerator& accelerator) {
      auto net = sharding_testing::mlp();
      auto model = accelerator.prepare(net);
      Sums sums(model);
      accelerator.register_for_checkpointing(sums);
      use(accelerator, sums);
    });
  };
  on_ranks(2, ShardingStrategy::full_shard, [&](Accelerator& accelerator, auto& sums) {
    sums.add();
    sums.add();
    accelerator.save_state(folder.path / "c", {.durable = false});
  });
  for (const int64_t ranks : {1, 3}) {
    for (const auto strategy : {ShardingStrategy::no_shard, ShardingStrategy::full_shard}) {
      on_ranks(ranks, strategy, [&](Accelerator& accelerator, auto& sums) {
        accelerator.load_state(folder.path / "c");
        for (const auto& shard : sums.model.parameter_shards()) {
          CHECK(sums.state_dict()[shard.name].equal(shard.value.detach() * 2));
        }
      });
    }
  }
}

TEST_CASE("elements of an object of the user that do not fit their range are refused") {
  with_ranks(2, sharded_by(ShardingStrategy::full_shard), [&](Accelerator& accelerator) {
    const SharedFolder folder(accelerator.group());
    torch::nn::Linear net(8, 4);
    auto model = accelerator.prepare(net);
    Sums sums(model);
    for (auto& sum : sums.sums) {
      if (sum.end > sum.begin) sum.value = torch::zeros({1});
    }
    accelerator.register_for_checkpointing(sums);
    const std::string text = testing::refusal_of_any_rank([&] { accelerator.save_state(folder.path / "c"); });
    CHECK(text.find(" of registered object 0 has 1 elements, must have those of its range, ") != std::string::npos);
    CHECK_FALSE(std::filesystem::exists(folder.path / "c"));
  });
}

TEST_CASE("averages of another shape, and of a model that is not sharded any more, are refused") {
  const SharedFolder folder;
  const auto register_average_of = [&](Accelerator& accelerator, bool narrow, const auto& run) {
    torch::nn::Linear first(7, 3), second(7, 4);
    auto first_model = accelerator.prepare(first);
    auto second_model = accelerator.prepare(second);
    ExponentialMovingAverage average(narrow ? first_model : second_model);
    accelerator.register_for_checkpointing(average);
    run(average);
  };
  with_ranks(2, sharded_by(ShardingStrategy::full_shard), [&](Accelerator& accelerator) {
    register_average_of(accelerator, /*narrow=*/true, [&](const ExponentialMovingAverage&) {
      accelerator.save_state(folder.path / "c", {.durable = false});
    });
  });
  with_ranks(2, sharded_by(ShardingStrategy::full_shard), [&](Accelerator& accelerator) {
    register_average_of(accelerator, /*narrow=*/false, [&](ExponentialMovingAverage& average) {
      const auto before = average.averages()[0].clone();
      CHECK(testing::refusal_of_any_rank([&] { accelerator.load_state(folder.path / "c"); }) ==
            "load_state: module.weight of registered object 0 is [3, 7], expected [4, 7]");
      CHECK(average.averages()[0].equal(before));
      accelerator.free_memory();
      const std::string text = testing::refusal_of_any_rank([&] { accelerator.save_state(folder.path / "d"); });
      CHECK(text.starts_with("save_state: module."));
      CHECK(text.ends_with(
          " of registered object 0 is a part of a parameter that no prepared model has sharded; make the "
          "object again after free_memory() or prepare()"));
      CHECK_FALSE(std::filesystem::exists(folder.path / "d"));
    });
  });
}
