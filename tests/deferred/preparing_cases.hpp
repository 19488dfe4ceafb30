// SPDX-License-Identifier: Apache-2.0
// prepare() of modules that init_empty_weights() built, for any kind of ranks. The including file defines with_ranks(),
// which omits numbers of ranks that dp_shard_size does not divide.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "accelerate/deferred/deferred_tensor.hpp"
#include "tests/checkpoint/folder.hpp"
#include "tests/refusal.hpp"
#include "tests/sharding/models.hpp"

namespace deferred_testing {

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using accelerate::ShardingStrategy;
using accelerate::deferred::is_deferred;
using testing::refusal;

/// With frozen and tied parameters, parameters that are computed from others, and buffers.
struct MixedNet : torch::nn::Module {
  MixedNet() {
    tokens = register_module("tokens", torch::nn::Embedding(10, 12));
    input = register_module("input", torch::nn::Linear(12, 11));
    norm = register_module("norm", torch::nn::BatchNorm1d(11));
    recurrent = register_module("recurrent", torch::nn::GRU(11, 12));
    input->weight.requires_grad_(false);
    tied = register_parameter("tied", tokens->weight);
    const torch::NoGradGuard no_grad;
    scale = register_parameter("scale", input->bias * 2 + 1);
    shift = register_parameter("shift", input->bias.clone());
    length = register_parameter("length", input->weight.norm(2, 1));
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    const auto hidden = torch::tanh(norm(input(tokens(ids))) * scale + shift * length);
    return at::linear(std::get<0>(recurrent(hidden.unsqueeze(0))).squeeze(0), tied);
  }
  torch::nn::Embedding tokens{nullptr};
  torch::nn::Linear input{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::GRU recurrent{nullptr};
  torch::Tensor tied, scale, shift, length;
};

struct Built {
  std::shared_ptr<MixedNet> net;
  torch::Tensor next;  ///< random numbers after the build
};
/// Ranks that are threads share the generator, so one builds after another.
inline Built build_with_seed(const std::function<std::shared_ptr<MixedNet>()>& build) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(9);
  auto net = build();
  return {std::move(net), torch::rand({3})};
}

inline std::shared_ptr<MixedNet> mixed_net(bool deferred) {
  const auto make = [] { return std::make_shared<MixedNet>(); };
  const auto [eager, next] = build_with_seed(make);
  if (!deferred) return eager;
  const auto [net, next_of_deferred] = build_with_seed([&] { return accelerate::init_empty_weights(make); });
  CHECK(next_of_deferred.equal(next));
  for (const auto& parameter : net->named_parameters()) {
    CHECK(is_deferred(parameter.value()) == (parameter.key() != "length" && parameter.key() != "input.weight"));
  }
  return net;
}

/// Each parameter once.
inline std::vector<torch::Tensor> parameters_of(const MixedNet& net) {
  std::vector<torch::Tensor> list;
  for (const auto& parameter : net.named_parameters()) {
    if (parameter.key() != "tied") list.push_back(parameter.value());
  }
  return list;
}

struct Training {
  Training(Accelerator& the_accelerator, bool deferred, bool optimizer_first = false)
      : accelerator(the_accelerator), net(mixed_net(deferred)), adamw(parameters_of(*net), 1e-2) {
    if (optimizer_first) {
      std::tie(optimizer, model) = accelerator.prepare(adamw, net);
    } else {
      std::tie(model, optimizer) = accelerator.prepare(net, adamw);
    }
    for (const auto& parameter : net->parameters()) CHECK_FALSE(is_deferred(parameter));
    for (const auto& buffer : net->buffers()) CHECK_FALSE(is_deferred(buffer));
  }
  void steps(int64_t number) {
    for (int64_t step = 0; step < number; ++step) {
      const auto ids = torch::arange(8).mul(3).add(step + accelerator.process_index()).remainder(10);
      optimizer.zero_grad();
      accelerator.backward(model(ids).square().mean());
      optimizer.step();
    }
  }
  /// Collective.
  [[nodiscard]] std::vector<torch::Tensor> values() const {
    const auto whole = Accelerator::summon_full_params(model);
    std::vector<torch::Tensor> list;
    for (const auto& parameter : net->parameters()) list.push_back(parameter.detach().clone());
    for (const auto& buffer : net->buffers()) list.push_back(buffer.clone());
    return list;
  }

  Accelerator& accelerator;
  std::shared_ptr<MixedNet> net;
  torch::optim::AdamW adamw;
  accelerate::PreparedModel<MixedNet> model;
  accelerate::PreparedOptimizer<torch::optim::AdamW> optimizer;
};

inline void check_equal(const std::vector<torch::Tensor>& own, const std::vector<torch::Tensor>& expected) {
  REQUIRE(own.size() == expected.size());
  for (size_t i = 0; i < own.size(); ++i) {
    CAPTURE(i);
    CHECK(own[i].equal(expected[i]));
  }
}

inline std::vector<AcceleratorOptions> all_strategies() {
  std::vector<AcceleratorOptions> list;
  for (const auto strategy :
       {ShardingStrategy::no_shard, ShardingStrategy::shard_optim_op, ShardingStrategy::shard_grad_op,
        ShardingStrategy::full_shard, ShardingStrategy::hybrid_shard, ShardingStrategy::hybrid_shard_zero2}) {
    list.push_back({.cpu = true, .sharding = strategy, .fsdp_plugin = {.min_num_params = 20}});
    if (accelerate::sharding::is_hybrid(strategy)) list.back().fsdp_plugin.dp_shard_size = 2;
  }
  return list;
}

/// Five steps of a module built without memory give the bits of an ordinary build.
inline void check_training(Accelerator& accelerator) {
  std::vector<torch::Tensor> at_first, expected;
  for (const auto& [deferred, optimizer_first] :
       std::vector<std::pair<bool, bool>>{{false, false}, {true, false}, {true, true}}) {
    Training training(accelerator, deferred, optimizer_first);
    if (!deferred) at_first = training.values();
    check_equal(training.values(), at_first);
    training.steps(5);
    if (!deferred) expected = training.values();
    check_equal(training.values(), expected);
    accelerator.free_memory();
  }
}

TEST_CASE("values before and after five AdamW steps have the bits of an ordinary build, with every strategy") {
  for (const AcceleratorOptions& options : all_strategies()) {
    CAPTURE(accelerate::sharding::strategy_name(*options.sharding));
    with_ranks(options, check_training);
  }
}

TEST_CASE("bfloat16 parameters with float32 masters have the bits of an ordinary build") {
  for (const auto strategy :
       {ShardingStrategy::no_shard, ShardingStrategy::shard_grad_op, ShardingStrategy::full_shard}) {
    CAPTURE(accelerate::sharding::strategy_name(strategy));
    AcceleratorOptions options{.cpu = true, .sharding = strategy, .fsdp_plugin = {.min_num_params = 20}};
    options.precision_policy = accelerate::precision::pure_bf16();
    with_ranks(options, check_training);
  }
}

TEST_CASE("checkpoints are loaded into modules that were built without memory") {
  for (const AcceleratorOptions& options : all_strategies()) {
    CAPTURE(accelerate::sharding::strategy_name(*options.sharding));
    with_ranks(options, [&](Accelerator& accelerator) {
      const testing::SharedFolder folder(accelerator.group());
      const auto path = folder.path / "c";
      std::vector<torch::Tensor> expected, next;
      {
        Training reference(accelerator, /*deferred=*/false);
        reference.steps(3);
        accelerator.save_state(path, {.durable = false});
        expected = reference.values();
        reference.steps(2);
        next = reference.values();
        accelerator.free_memory();
      }
      Training training(accelerator, /*deferred=*/true);
      accelerator.load_state(path);
      check_equal(training.values(), expected);
      training.steps(2);
      check_equal(training.values(), next);
      const auto loaded = [&](bool deferred) {
        Training other(accelerator, deferred);
        CHECK(accelerator.load_model(other.model, path) == accelerate::prepared::LoadedModel{});
        return other.values();
      };
      check_equal(loaded(/*deferred=*/true), loaded(/*deferred=*/false));  // with the buffers of rank 0
    });
  }
}

TEST_CASE("an Accelerator used by the function that builds a module is an error") {
  with_ranks({.cpu = true}, [](Accelerator& accelerator) {
    const auto text =
        refusal([&] { accelerate::init_empty_weights([&] { (void)accelerator.prepare(torch::nn::Linear(3, 2)); }); });
    CHECK_MESSAGE(text.ends_with("prepare: init_empty_weights() is still running, so that new tensors have no memory; "
                                 "call prepare() after it returned"),
                  text);
  });
}

}  // namespace deferred_testing
