// SPDX-License-Identifier: Apache-2.0
#include "accelerate/sharding/shard_mesh.hpp"

#include <algorithm>

#include "accelerate/base/error.hpp"
#include "accelerate/comm/error_context.hpp"

namespace accelerate::sharding {
namespace {

std::vector<int64_t> replicas_of_hosts(std::span<const std::string> hosts, const RankContext& place) {
  std::vector<std::string> names;
  std::vector<int64_t> counts, replicas;
  for (const std::string& host : hosts) {
    const auto known = std::ranges::find(names, host);
    replicas.push_back(known - names.begin());
    if (known == names.end()) {
      names.push_back(host);
      counts.push_back(0);
    }
    ++counts[static_cast<size_t>(replicas.back())];
  }
  const auto other = std::ranges::find_if(counts, [&](int64_t count) { return count != counts.front(); });
  if (other != counts.end()) {
    base::fail(ErrorKind::usage, place, "sharding",
               "a hybrid strategy divides the model over the ranks of each machine, {} has {} ranks and {} has {}, but "
               "the parts of all machines must be the same; start the same number of ranks on every machine, set "
               "fsdp_plugin.dp_shard_size, or use full_shard",
               names.front(), counts.front(), names[static_cast<size_t>(other - counts.begin())], *other);
  }
  return replicas;
}

}  // namespace

std::vector<int64_t> plan_replicas(std::span<const std::string> hosts, int64_t dp_shard_size,
                                   const RankContext& place) {
  if (dp_shard_size == 0) return replicas_of_hosts(hosts, place);
  const auto ranks = static_cast<int64_t>(hosts.size());
  if (ranks % dp_shard_size != 0) {
    base::fail(ErrorKind::usage, place, "sharding",
               "fsdp_plugin.dp_shard_size is {} and the job has {} ranks; the size must divide the number of ranks",
               dp_shard_size, ranks);
  }
  std::vector<int64_t> replicas;
  for (int64_t rank = 0; rank < ranks; ++rank) replicas.push_back(rank / dp_shard_size);
  return replicas;
}

ShardMesh one_shard_group(const comm::Group& world) { return {.world = world, .shard = world}; }

ShardMesh make_mesh(const comm::Group& world, std::span<const int64_t> replica_of_rank) {
  ShardMesh mesh = one_shard_group(world);
  mesh.replicas = 1 + std::ranges::max(replica_of_rank);
  if (!mesh.has_replicas()) return mesh;
  mesh.replica = replica_of_rank[static_cast<size_t>(world.rank())];
  mesh.shard = world.split(mesh.replica, "dp_shard");
  mesh.replicate = world.split(mesh.shard.rank(), "dp_replicate");
  return mesh;
}

ShardMesh make_mesh(const comm::Group& world, const FullShardOptions& options) {
  if (!options.is_hybrid) return one_shard_group(world);
  return comm::with_operation_context("prepare", "the groups of hybrid sharding are not made", world.place(), [&] {
    const auto hosts = world.all_gather_bytes(base::host_name());
    return make_mesh(world, plan_replicas(hosts, options.dp_shard_size, world.place()));
  });
}

}  // namespace accelerate::sharding
