// SPDX-License-Identifier: Apache-2.0
#include "accelerate/job/mesh_groups.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/comm/error_context.hpp"

namespace accelerate::job {
namespace {

using env::MeshDimension;

comm::Group split_by(const comm::Group& world, const env::ParallelismConfig& config,
                     std::span<const MeshDimension> dimensions, std::string_view ranks_name) {
  if (config.size(dimensions) == 1) return {};
  if (config.non_data_parallel_size() == 1) return world;  // the ranks of the job need no name
  return comm::with_operation_context("parallelism_config", "the groups of the mesh are not made", world.place(), [&] {
    return world.split(config.group(world.rank(), dimensions).front(), ranks_name);
  });
}

// Ranks with different sizes would be in groups that do not fit together, and wait for each other.
void check_same_sizes(const comm::Group& world, const env::ParallelismConfig& config) {
  if (world.size() == 1) return;
  const std::string text = config.total_size() == 1 ? fmt::format("dp_replicate {}", world.size()) : config.text();
  const auto all = comm::with_operation_context("parallelism_config", "the sizes are not compared", world.place(),
                                                [&] { return world.all_gather_bytes(text); });
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    base::fail(ErrorKind::usage, world.place(), "parallelism_config",
               "rank 0 has {}, rank {} has {}; set the same sizes on all ranks, in code, in PARALLELISM_CONFIG_* "
               "variables, or in the config file",
               all[0], rank, all[rank]);
  }
}

std::string place_text(const MeshGroups& mesh) {
  std::vector<std::string> numbers;
  for (const auto dimension : mesh.config.active_mesh_dims()) {
    numbers.push_back(fmt::format("{} {}", env::dimension_name(dimension), mesh.coordinates.at(dimension)));
  }
  return fmt::to_string(fmt::join(numbers, ", "));
}

}  // namespace

env::ParallelismConfig resolve_parallelism(const std::optional<env::ParallelismConfig>& given,
                                           const env::Variables& variables, const env::Config& config,
                                           const RankContext& place) {
  const auto [resolved, conflicts] = env::weigh_parallelism(given, variables, config);
  if (place.rank == 0) {
    for (const std::string& conflict : conflicts) base::log_once(base::LogLevel::warning, place, "{}", conflict);
  }
  const env::ParallelismConfig mesh = resolved.value_or(env::ParallelismConfig{});
  if (mesh.size(MeshDimension::sp) > 1) {
    base::fail(ErrorKind::usage, place, "parallelism_config",
               "sp_size is {}, and DeepSpeed's sequence parallelism is not supported; set it to 1, and split the "
               "sequence with cp_size or with tensor parallel layers (sequence_dim)",
               mesh.size(MeshDimension::sp));
  }
  return mesh;
}

int64_t MeshGroups::data_rank_of(int64_t rank) const {
  if (!is_model_parallel()) return rank;
  const auto group = config.group(rank, env::mesh::kDp);
  return std::ranges::find(group, rank) - group.begin();
}

MeshGroups make_mesh_groups(const comm::Group& world, const env::ParallelismConfig& config) {
  check_same_sizes(world, config);
  MeshGroups mesh{.config = config.completed(world.size(), world.place()), .world = world};
  mesh.coordinates = mesh.config.coordinates(world.rank());
  mesh.data = split_by(world, mesh.config, env::mesh::kDp, "data parallel");
  mesh.context = split_by(world, mesh.config, std::array{MeshDimension::cp}, "context parallel");
  mesh.tensor = split_by(world, mesh.config, std::array{MeshDimension::tp}, "tensor parallel");
  mesh.pipeline = split_by(world, mesh.config, std::array{MeshDimension::pp}, "pipeline parallel");
  if (!mesh.is_model_parallel()) {
    mesh.data = world;
  } else {
    base::log(base::LogLevel::info, world.place(), "parallelism_config: {}; this rank: {}", mesh.config.text(),
              place_text(mesh));
  }
  mesh.data_context = mesh.context.size() == 1
                          ? mesh.data
                          : split_by(world, mesh.config, env::mesh::kDpCp, "data and context parallel");
  return mesh;
}

}  // namespace accelerate::job
