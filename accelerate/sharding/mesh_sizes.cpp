// SPDX-License-Identifier: Apache-2.0
#include "accelerate/sharding/mesh_sizes.hpp"

#include <utility>

#include "accelerate/base/error.hpp"

namespace accelerate::sharding {

void apply_mesh_sizes(const env::ParallelismConfig& mesh, ShardingSettings& settings, const RankContext& place) {
  using enum ShardingStrategy;
  if (mesh.total_size() == 1) return;
  const auto fail = [&]<typename... Args>(fmt::format_string<Args...> format, Args&&... args) {
    base::fail(ErrorKind::usage, place, "parallelism_config", format, std::forward<Args>(args)...);
  };
  const int64_t replicate = mesh.size(env::MeshDimension::dp_replicate),
                dp_shard = mesh.size(env::MeshDimension::dp_shard), shard = mesh.size(env::mesh::kDpShardCp);
  if (settings.strategy == no_shard) {
    if (dp_shard > 1) fail("dp_shard_size is {}, and sharding is no_shard; set sharding to full_shard", dp_shard);
    return;
  }
  FullShardOptions& options = settings.full_shard;
  if (is_hybrid(settings.strategy) && options.dp_shard_size != 0 && options.dp_shard_size != dp_shard) {
    fail("dp_shard_size is {}, and fsdp_plugin.dp_shard_size is {}; set one of them, or both to the same value",
         dp_shard, options.dp_shard_size);
  }
  if (shard == 1) {
    fail(
        "dp_shard_size is 1, and sharding is {}; set dp_shard_size to the number of ranks that divide the model, or "
        "use no_shard",
        strategy_name(settings.strategy));
  }
  if (replicate > 1 && settings.strategy == shard_optim_op) {
    fail("dp_replicate_size is {}, and shard_optim_op divides over all ranks; use full_shard or shard_grad_op",
         replicate);
  }
  if (replicate > 1 && settings.strategy == full_shard) settings.strategy = hybrid_shard;
  if (replicate > 1 && settings.strategy == shard_grad_op) settings.strategy = hybrid_shard_zero2;
  if (!is_hybrid(settings.strategy)) return;
  options.is_hybrid = true;
  options.dp_shard_size = shard;
}

}  // namespace accelerate::sharding
