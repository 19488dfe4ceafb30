// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace accelerate::sharding {

/// The parts of the training state that are divided over the ranks. The names are those of PyTorch's FSDP;
/// shard_optim_op is ZeRO-1, for which FSDP has no name. shard_grad_op keeps parameters whole between steps, as ZeRO-2
/// of DeepSpeed does.
enum class ShardingStrategy : std::uint8_t {
  no_shard,        ///< every rank has everything
  shard_optim_op,  ///< ZeRO-1: optimizer state
  shard_grad_op,   ///< ZeRO-2: optimizer state and gradients
  full_shard,      ///< ZeRO-3: optimizer state, gradients and parameters
};

/// Returns the name of the enumerator.
[[nodiscard]] constexpr std::string_view name_of(ShardingStrategy strategy) {
  switch (strategy) {
    case ShardingStrategy::no_shard:
      return "no_shard";
    case ShardingStrategy::shard_optim_op:
      return "shard_optim_op";
    case ShardingStrategy::shard_grad_op:
      return "shard_grad_op";
    case ShardingStrategy::full_shard:
      return "full_shard";
  }
  return "unknown";
}

}  // namespace accelerate::sharding
