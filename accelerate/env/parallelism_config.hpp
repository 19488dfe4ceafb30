// SPDX-License-Identifier: Apache-2.0
// The mesh of a job: the sizes of its kinds of parallelism, and the coordinates and groups of each rank.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/env/process_env.hpp"
#include "accelerate/env/settings.hpp"

namespace accelerate::env {

/// Dimensions of the mesh in the order of the ranks: neighbouring ranks differ in tp. The order is that of Hugging Face
/// Accelerate's device mesh; pp is outside of it, because pipeline stages exchange the least data.
enum class MeshDimension {
  pp,            ///< pipeline stages
  dp_replicate,  ///< data parallelism, each rank with whole parameters
  dp_shard,      ///< data parallelism with sharded parameters
  cp,            ///< context parallelism: parts of a sequence
  sp,            ///< Accelerate's sequence parallelism of DeepSpeed
  tp,            ///< tensor parallelism: parts of layers
};

inline constexpr std::array<MeshDimension, 6> kMeshOrder{MeshDimension::pp,       MeshDimension::dp_replicate,
                                                         MeshDimension::dp_shard, MeshDimension::cp,
                                                         MeshDimension::sp,       MeshDimension::tp};

/// Joined dimensions, with the names of Accelerate's flattened meshes.
namespace mesh {
/// "dp": ranks that read different batches.
inline constexpr std::array kDp{MeshDimension::dp_replicate, MeshDimension::dp_shard};
/// "dp_shard_cp": ranks over which parameters are sharded.
inline constexpr std::array kDpShardCp{MeshDimension::dp_shard, MeshDimension::cp};
/// "dp_cp": ranks over which the loss and the gradients are averaged.
inline constexpr std::array kDpCp{MeshDimension::dp_replicate, MeshDimension::dp_shard, MeshDimension::cp};
}  // namespace mesh

/// Returns "dp_replicate" for MeshDimension::dp_replicate.
std::string_view dimension_name(MeshDimension dimension);

/// Position of a rank in the mesh, one number from 0 to size - 1 for each dimension.
struct MeshCoordinates {
  int64_t pp = 0;
  int64_t dp_replicate = 0;
  int64_t dp_shard = 0;
  int64_t cp = 0;
  int64_t sp = 0;
  int64_t tp = 0;

  [[nodiscard]] int64_t at(MeshDimension dimension) const;
  bool operator==(const MeshCoordinates&) const = default;
};

/// Sizes of the dimensions of the mesh, with the names of Accelerate's ParallelismConfig; pp_size is an addition.
///
/// A pure value: all functions are thread-safe and need no communication. Unlike Accelerate, it permits tp_size and
/// cp_size together with pure data parallelism (dp_replicate_size without dp_shard_size).
struct ParallelismConfig {
  /// Data parallel ranks with whole parameters. If unset, the environment or the config file; otherwise 1.
  std::optional<int64_t> dp_replicate_size{};
  /// Data parallel ranks over which parameters are sharded, together with the ranks of cp_size. If unset, the
  /// environment or the config file; otherwise 1.
  std::optional<int64_t> dp_shard_size{};
  /// Ranks of a tensor parallel group. If unset, the environment or the config file; otherwise 1.
  std::optional<int64_t> tp_size{};
  /// Ranks of a context parallel group, which read the same batches and have parts of each sequence. If unset, the
  /// environment or the config file; otherwise 1.
  std::optional<int64_t> cp_size{};
  /// Ranks of a DeepSpeed sequence parallel group. If unset, the environment or the config file; otherwise 1.
  std::optional<int64_t> sp_size{};
  /// Pipeline stages. If unset, the environment or the config file; otherwise 1.
  std::optional<int64_t> pp_size{};

  /// Size of one dimension; 1 if it is unset.
  [[nodiscard]] int64_t size(MeshDimension dimension) const;
  /// Product of the sizes of several dimensions.
  [[nodiscard]] int64_t size(std::span<const MeshDimension> dimensions) const;
  /// Product of all sizes; the largest int64 if the product is larger.
  [[nodiscard]] int64_t total_size() const { return size(kMeshOrder); }
  /// Number of ranks that read different batches.
  [[nodiscard]] int64_t data_parallel_size() const { return size(mesh::kDp); }
  /// Number of ranks that read the same batches.
  [[nodiscard]] int64_t non_data_parallel_size() const;
  /// Dimensions with more than one rank, in the order of the mesh.
  [[nodiscard]] std::vector<MeshDimension> active_mesh_dims() const;

  /// Returns the mesh of a job. If no dimension has more than one rank, all ranks are data parallel, as in Accelerate.
  ///
  /// \param world_size  Ranks of the job.
  /// \param place       This rank, for messages.
  /// \returns this config with dp_replicate_size = world_size if all sizes are 1.
  /// \throws Error (usage) if a size is less than 1, if the product of all sizes is not world_size, or if cp_size and
  ///         sp_size are both larger than 1.
  [[nodiscard]] ParallelismConfig completed(int64_t world_size, const RankContext& place = {}) const;

  /// \param rank  0 <= rank < total_size().
  /// \throws Error (usage) for another rank.
  [[nodiscard]] MeshCoordinates coordinates(int64_t rank) const;
  /// Inverse of coordinates().
  [[nodiscard]] int64_t rank_of(const MeshCoordinates& coordinates) const;
  /// Ranks that differ from this rank in the given dimensions at most, in ascending order; the rank itself is a member.
  /// The first member is the color for comm::Group::split().
  [[nodiscard]] std::vector<int64_t> group(int64_t rank, std::span<const MeshDimension> dimensions) const;
  [[nodiscard]] std::vector<int64_t> group(int64_t rank, MeshDimension dimension) const;
  /// All groups of the given dimensions, in the order of their first rank. Each rank is in one group.
  [[nodiscard]] std::vector<std::vector<int64_t>> groups(std::span<const MeshDimension> dimensions) const;

  /// "dp_replicate 2 x tp 4": the dimensions with more than one rank, or "1 rank".
  [[nodiscard]] std::string text() const;
  /// One line for each rank, such as "rank 3: dp_replicate 1, tp 1".
  [[nodiscard]] std::string ranks_text() const;

  bool operator==(const ParallelismConfig&) const = default;
};

/// The resolved sizes, and one sentence for every overridden value that differs.
struct ParallelismResolution {
  /// Unset if neither the code nor another source configures the mesh; the ranks are then data parallel.
  std::optional<ParallelismConfig> config{};
  std::vector<std::string> conflicts{};
};

/// Precedence of every size: given > environment > config file. Without `given`, the sizes count only if
/// use_parallelism_config is true (ACCELERATE_USE_PARALLELISM_CONFIG), as in Accelerate. Pure function.
///
/// \param given     From the code. Unset sizes are read from the other sources.
/// \param given_by  Name of the source of `given` for messages.
/// \throws Error (usage) for an invalid size from code; Error (environment) for an invalid variable or config value,
///         with its source.
ParallelismResolution weigh_parallelism(const std::optional<ParallelismConfig>& given, const Variables& variables,
                                        const Config& config, std::string_view given_by = "the code");

}  // namespace accelerate::env

namespace accelerate {
using env::MeshCoordinates;
using env::MeshDimension;
using env::ParallelismConfig;
}  // namespace accelerate
