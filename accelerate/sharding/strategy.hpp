// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace accelerate::sharding {

/// The parts of the training state that are divided over the ranks. The names are those of PyTorch's FSDP;
/// shard_optim_op is ZeRO-1, for which FSDP has no name. shard_grad_op keeps parameters whole between steps, as ZeRO-2
/// of DeepSpeed does. The hybrid strategies divide the model among the ranks of a machine, and every machine has a
/// replica of it.
enum class ShardingStrategy : std::uint8_t {
  no_shard,            ///< every rank has everything
  shard_optim_op,      ///< ZeRO-1: optimizer state
  shard_grad_op,       ///< ZeRO-2: optimizer state and gradients
  full_shard,          ///< ZeRO-3: optimizer state, gradients and parameters
  hybrid_shard,        ///< full_shard within a machine
  hybrid_shard_zero2,  ///< shard_grad_op within a machine
};

/// How save_state() writes sharded tensors.
enum class StateDictType : std::uint8_t {
  full_state_dict,     ///< rank 0 gathers whole tensors and writes the files of unsharded training
  sharded_state_dict,  ///< each rank writes its parts
};

/// Gathers before their use in a backward, with the names of PyTorch's FSDP. Both first values start the next gather
/// when an operator uses the unit before it.
enum class BackwardPrefetch : std::uint8_t {
  backward_pre,
  backward_post,  ///< the same as backward_pre
  no_prefetch,    ///< a unit is gathered when an operator uses it, so that one whole unit is resident in a backward
};

/// How the units of full_shard and shard_grad_op are found.
enum class AutoWrapPolicy : std::uint8_t {
  transformer_based_wrap,  ///< by the names of classes, if there are any, otherwise as size_based_wrap
  size_based_wrap,         ///< by the structure and the size of modules
  no_wrap,                 ///< one unit for each dtype, so full_shard gathers the whole model at once
};

/// Returns the name of the enumerator.
[[nodiscard]] constexpr std::string_view strategy_name(ShardingStrategy strategy) {
  switch (strategy) {
    case ShardingStrategy::no_shard:
      return "no_shard";
    case ShardingStrategy::shard_optim_op:
      return "shard_optim_op";
    case ShardingStrategy::shard_grad_op:
      return "shard_grad_op";
    case ShardingStrategy::full_shard:
      return "full_shard";
    case ShardingStrategy::hybrid_shard:
      return "hybrid_shard";
    case ShardingStrategy::hybrid_shard_zero2:
      return "hybrid_shard_zero2";
  }
  return "unknown";
}

/// Returns true if a rank keeps only its part of the parameters between steps.
[[nodiscard]] constexpr bool shards_parameters(ShardingStrategy strategy) {
  return strategy == ShardingStrategy::full_shard || strategy == ShardingStrategy::hybrid_shard;
}

[[nodiscard]] constexpr bool is_hybrid(ShardingStrategy strategy) {
  return strategy == ShardingStrategy::hybrid_shard || strategy == ShardingStrategy::hybrid_shard_zero2;
}

}  // namespace accelerate::sharding
