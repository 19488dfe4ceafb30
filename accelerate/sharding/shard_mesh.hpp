// SPDX-License-Identifier: Apache-2.0
// The groups of ranks that divide a model, and of ranks that have the same part of it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "accelerate/comm/group.hpp"
#include "accelerate/sharding/full_shard_options.hpp"

namespace accelerate::sharding {

/// The groups of one sharded model, like the dimensions "shard" and "replicate" of PyTorch's device mesh. The ranks of
/// a shard group have the whole model together. With hybrid sharding there are several, which are replicas.
struct ShardMesh {
  comm::Group world{};      ///< all ranks that train the model
  comm::Group shard{};      ///< ranks that divide the model among them
  comm::Group replicate{};  ///< ranks with the same part, one of each replica
  int64_t replica = 0;      ///< number of this rank's shard group; rank 0 of `world` is in group 0
  int64_t replicas = 1;

  [[nodiscard]] bool has_replicas() const { return replicas > 1; }
};

/// Returns one shard group of all ranks. Its groups share the connection of `world`.
[[nodiscard]] ShardMesh one_shard_group(const comm::Group& world);

/// Returns the groups for the options: one shard group, or with is_hybrid one for each machine or dp_shard_size ranks.
/// Collective.
/// \param world  For exclusive use by the result.
/// \throws Error (usage) on every rank for the reasons of plan_replicas().
[[nodiscard]] ShardMesh make_mesh(const comm::Group& world, const FullShardOptions& options);

/// Returns the groups for a number of the shard group of each rank, [ranks], from 0. Collective.
/// \param world  For exclusive use by the result.
[[nodiscard]] ShardMesh make_mesh(const comm::Group& world, std::span<const int64_t> replica_of_rank);

/// Returns the number of each rank's shard group, [ranks]. Groups are numbered by their first rank. Pure function.
/// \param hosts          Host name of each rank, [ranks].
/// \param dp_shard_size  Number of consecutive ranks in a shard group. If 0, the ranks of a host are a shard group.
/// \throws Error (usage) if the groups would have different sizes.
[[nodiscard]] std::vector<int64_t> plan_replicas(std::span<const std::string> hosts, int64_t dp_shard_size,
                                                 const RankContext& place);

}  // namespace accelerate::sharding
