// SPDX-License-Identifier: Apache-2.0
// The process groups of the mesh of a job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "accelerate/comm/group.hpp"
#include "accelerate/env/parallelism_config.hpp"
#include "accelerate/env/process_env.hpp"
#include "accelerate/env/settings.hpp"

namespace accelerate::job {

/// The mesh of a job, seen from one rank. A group of a dimension of size 1 has this rank only and no connection. With
/// model parallelism, errors of a group name its dimension: "... over the 2 tensor parallel ranks".
struct MeshGroups {
  env::ParallelismConfig config{};     ///< completed: the product of the sizes is the number of ranks
  env::MeshCoordinates coordinates{};  ///< of this rank
  comm::Group world{};                 ///< all ranks
  comm::Group data{};                  ///< ranks that read different batches: dp_replicate x dp_shard
  comm::Group context{};               ///< ranks that read the same batches and have parts of each sequence
  comm::Group data_context{};          ///< ranks over which gradients are averaged: dp_replicate x dp_shard x cp
  comm::Group tensor{};                ///< ranks that have parts of the same layers
  comm::Group pipeline{};              ///< ranks that have different stages

  /// True if some ranks read the same batches.
  [[nodiscard]] bool is_model_parallel() const { return config.non_data_parallel_size() > 1; }
  /// True if some ranks have other parameters because layers are divided: tensor parallel parts or pipeline stages.
  [[nodiscard]] bool divides_layers() const { return tensor.size() > 1 || pipeline.size() > 1; }
  /// "dp_replicate 2 x tp 2", or empty if all ranks are data parallel.
  [[nodiscard]] std::string text() const { return is_model_parallel() ? config.text() : ""; }
  /// Position of a rank of the world in its data parallel group. Ranks with the same position read the same batches.
  [[nodiscard]] int64_t data_rank_of(int64_t rank) const;
};

/// Resolves the sizes from code, environment and config file, and logs every overridden value once as a warning on
/// rank 0. If no source configures a mesh, all ranks are data parallel.
///
/// \returns the sizes as configured; all of them are 1 without a mesh.
/// \throws Error (usage) for a mesh that is not supported yet, Error (usage, environment) as env::weigh_parallelism().
[[nodiscard]] env::ParallelismConfig resolve_parallelism(const std::optional<env::ParallelismConfig>& given,
                                                         const env::Variables& variables, const env::Config& config,
                                                         const RankContext& place);

/// Splits the ranks into the groups of the mesh. Collective over the world. Each rank logs the mesh and its coordinates
/// unless all ranks are data parallel.
///
/// \param config  Result of resolve_parallelism().
/// \throws Error (usage) on every rank if the ranks have different sizes, or if the product of the sizes is not the
///         number of ranks.
[[nodiscard]] MeshGroups make_mesh_groups(const comm::Group& world, const env::ParallelismConfig& config);

}  // namespace accelerate::job
