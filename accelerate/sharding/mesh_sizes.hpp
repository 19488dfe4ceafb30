// SPDX-License-Identifier: Apache-2.0
// Private: applies the data parallel sizes of a mesh to the options of sharded training.
#pragma once

#include "accelerate/env/parallelism_config.hpp"
#include "accelerate/sharding/plugin.hpp"

namespace accelerate::sharding {

/// With both dp_replicate_size and dp_shard_size above 1, full_shard becomes hybrid_shard and shard_grad_op becomes
/// hybrid_shard_zero2, as in PyTorch's FSDP on a mesh of two dimensions. The ranks of a context parallel group divide
/// the parameters, too: a replica has dp_shard_size * cp_size ranks. Pure function.
///
/// \param mesh  Sizes as configured. If all are 1, nothing is changed.
/// \throws Error (usage) if the sizes and the strategy contradict each other, with the remedy.
void apply_mesh_sizes(const env::ParallelismConfig& mesh, ShardingSettings& settings, const RankContext& place);

}  // namespace accelerate::sharding
