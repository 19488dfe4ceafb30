// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/sharding_support.hpp"

#include <c10/util/StringUtil.h>
#include <fmt/format.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include <typeinfo>

#include "accelerate/optim/fused_step.hpp"
#include "accelerate/optim/parameter_groups.hpp"
#include "accelerate/prepared/split_parameters.hpp"

namespace accelerate::prepared {

using sharding::ShardingStrategy;

void check_sharding(const AcceleratorState& shared, bool save_on_each_node) {
  const ShardingStrategy strategy = shared.sharding;
  if (strategy == ShardingStrategy::no_shard) return;
  const auto fail = [&](std::string_view problem) {
    base::fail(ErrorKind::usage, shared.place, "sharding", "{} {}", sharding::strategy_name(strategy), problem);
  };
  if (shared.policy.parameter && strategy == ShardingStrategy::shard_optim_op) {
    fail(fmt::format(
        "is not supported with parameters in {} and float32 master weights; use shard_grad_op or full_shard, "
        "which divide the masters, or mixed_precision bf16",
        c10::toString(*shared.policy.parameter)));
  }
  if (!shared.fused_optimizer) {
    fail(
        "needs fused_optimizer, which is false: an optimizer's own step() needs whole parameters; set it to true, or "
        "use no_shard");
  }
  if (save_on_each_node) {
    fail(
        "is not supported with project.save_on_each_node, because no machine would have all parts; set it to "
        "false, or use no_shard");
  }
}

bool divides_models(const AcceleratorState& shared) {
  return shared.sharding != ShardingStrategy::no_shard && (shared.group.size() > 1 || shared.full_shard.cpu_offload);
}

bool divides_gradients(const AcceleratorState& shared) {
  return divides_models(shared) && shared.sharding != ShardingStrategy::shard_optim_op;
}

void check_shardable(const AcceleratorState& shared, torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<torch::optim::LBFGS*>(&optimizer) != nullptr && has_split(optim::parameters_of(optimizer))) {
    base::fail(
        ErrorKind::usage, shared.place, "prepare",
        "torch::optim::LBFGS combines all elements of the parameters, and this rank has parts of tensor parallel "
        "layers; use an optimizer that steps on each element");
  }
  if (shared.sharding == ShardingStrategy::no_shard) return;
  if (optim::FusedStep::for_optimizer(optimizer) != nullptr) return;
  base::fail(ErrorKind::usage, shared.place, "prepare",
             "an optimizer of type {} steps on whole parameters; with sharding {} it must be torch::optim::SGD, Adam, "
             "AdamW, Adagrad or RMSprop, not a subclass",
             c10::demangle(typeid(optimizer).name()), sharding::strategy_name(shared.sharding));
}

void refuse_with_sharding(const AcceleratorState& shared, std::string_view operation, std::string_view reason) {
  if (shared.sharding == ShardingStrategy::no_shard) return;
  base::fail(ErrorKind::usage, shared.place, operation,
             "with sharding {} it is not supported, because {}; use no_shard", sharding::strategy_name(shared.sharding),
             reason);
}

}  // namespace accelerate::prepared
