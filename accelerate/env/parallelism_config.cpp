// SPDX-License-Identifier: Apache-2.0
#include "accelerate/env/parallelism_config.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "accelerate/base/error.hpp"
#include "accelerate/env/parallelism_table.hpp"
#include "accelerate/env/precedence.hpp"

namespace accelerate::env {
namespace {

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

template <typename... Args>
[[noreturn]] void refuse_mesh(const RankContext& place, fmt::format_string<Args...> format, Args&&... args) {
  base::fail(ErrorKind::usage, place, "parallelism_config", format, std::forward<Args>(args)...);
}

int64_t& member(MeshCoordinates& coordinates, MeshDimension dimension) {
  switch (dimension) {
    case MeshDimension::pp:
      return coordinates.pp;
    case MeshDimension::dp_replicate:
      return coordinates.dp_replicate;
    case MeshDimension::dp_shard:
      return coordinates.dp_shard;
    case MeshDimension::cp:
      return coordinates.cp;
    case MeshDimension::sp:
      return coordinates.sp;
    case MeshDimension::tp:
      break;
  }
  return coordinates.tp;
}

/// Product of positive numbers, or the largest number.
int64_t product(int64_t a, int64_t b) { return b != 0 && a > kLargest / b ? kLargest : a * b; }

/// "dp_replicate_size 2 x dp_shard_size 1 x ...": all factors, in the order of the mesh.
std::string factors_text(const ParallelismConfig& config) {
  std::string text;
  for (const auto dimension : kMeshOrder) {
    text += fmt::format("{}{}_size {}", text.empty() ? "" : " x ", dimension_name(dimension), config.size(dimension));
  }
  return text;
}

void check_rank(int64_t rank, int64_t total) {
  if (rank < 0 || rank >= total) refuse_mesh({}, "rank is {}, must be from 0 to {}", rank, total - 1);
}

}  // namespace

std::string_view dimension_name(MeshDimension dimension) {
  switch (dimension) {
    case MeshDimension::pp:
      return "pp";
    case MeshDimension::dp_replicate:
      return "dp_replicate";
    case MeshDimension::dp_shard:
      return "dp_shard";
    case MeshDimension::cp:
      return "cp";
    case MeshDimension::sp:
      return "sp";
    case MeshDimension::tp:
      break;
  }
  return "tp";
}

int64_t MeshCoordinates::at(MeshDimension dimension) const {
  MeshCoordinates copy = *this;
  return member(copy, dimension);
}

int64_t ParallelismConfig::size(MeshDimension dimension) const {
  switch (dimension) {
    case MeshDimension::pp:
      return pp_size.value_or(1);
    case MeshDimension::dp_replicate:
      return dp_replicate_size.value_or(1);
    case MeshDimension::dp_shard:
      return dp_shard_size.value_or(1);
    case MeshDimension::cp:
      return cp_size.value_or(1);
    case MeshDimension::sp:
      return sp_size.value_or(1);
    case MeshDimension::tp:
      break;
  }
  return tp_size.value_or(1);
}

int64_t ParallelismConfig::size(std::span<const MeshDimension> dimensions) const {
  int64_t all = 1;
  for (const auto dimension : dimensions) all = product(all, size(dimension));
  return all;
}

int64_t ParallelismConfig::non_data_parallel_size() const {
  using enum MeshDimension;
  return size(std::array{pp, cp, sp, tp});
}

std::vector<MeshDimension> ParallelismConfig::active_mesh_dims() const {
  std::vector<MeshDimension> active;
  for (const auto dimension : kMeshOrder) {
    if (size(dimension) > 1) active.push_back(dimension);
  }
  return active;
}

ParallelismConfig ParallelismConfig::completed(int64_t world_size, const RankContext& place) const {
  for (const auto dimension : kMeshOrder) {
    if (size(dimension) >= 1) continue;
    refuse_mesh(place, "{}_size is {}, must be at least 1", dimension_name(dimension), size(dimension));
  }
  if (size(MeshDimension::cp) > 1 && size(MeshDimension::sp) > 1) {
    refuse_mesh(place, "cp_size is {} and sp_size {}; one of them must be 1", size(MeshDimension::cp),
                size(MeshDimension::sp));
  }
  ParallelismConfig result = *this;
  if (total_size() == 1) result.dp_replicate_size = world_size;
  if (result.total_size() == world_size) return result;
  const int64_t total = result.total_size();
  refuse_mesh(place, "{} is {} ranks, the job has {}; the product must be the world size", factors_text(result),
              total == kLargest ? "too many" : fmt::to_string(total), world_size);
}

MeshCoordinates ParallelismConfig::coordinates(int64_t rank) const {
  check_rank(rank, total_size());
  MeshCoordinates result;
  for (auto dimension = kMeshOrder.rbegin(); dimension != kMeshOrder.rend(); ++dimension) {
    member(result, *dimension) = rank % size(*dimension);
    rank /= size(*dimension);
  }
  return result;
}

int64_t ParallelismConfig::rank_of(const MeshCoordinates& coordinates) const {
  int64_t rank = 0;
  for (const auto dimension : kMeshOrder) rank = rank * size(dimension) + coordinates.at(dimension);
  return rank;
}

std::vector<int64_t> ParallelismConfig::group(int64_t rank, std::span<const MeshDimension> dimensions) const {
  std::vector<MeshCoordinates> members{coordinates(rank)};
  for (const auto dimension : dimensions) {
    std::vector<MeshCoordinates> wider;
    for (auto each : members) {
      for (int64_t at = 0; at < size(dimension); ++at) {
        member(each, dimension) = at;
        wider.push_back(each);
      }
    }
    members = std::move(wider);
  }
  std::vector<int64_t> ranks;
  ranks.reserve(members.size());
  for (const auto& each : members) ranks.push_back(rank_of(each));
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::vector<int64_t> ParallelismConfig::group(int64_t rank, MeshDimension dimension) const {
  return group(rank, std::array{dimension});
}

std::vector<std::vector<int64_t>> ParallelismConfig::groups(std::span<const MeshDimension> dimensions) const {
  std::vector<std::vector<int64_t>> all;
  for (int64_t rank = 0; rank < total_size(); ++rank) {
    auto members = group(rank, dimensions);
    if (members.front() == rank) all.push_back(std::move(members));
  }
  return all;
}

std::string ParallelismConfig::text() const {
  std::string text;
  for (const auto dimension : active_mesh_dims()) {
    text += fmt::format("{}{} {}", text.empty() ? "" : " x ", dimension_name(dimension), size(dimension));
  }
  return text.empty() ? "1 rank" : text;
}

std::string ParallelismConfig::ranks_text() const {
  std::string text;
  for (int64_t rank = 0; rank < total_size(); ++rank) {
    const MeshCoordinates place = coordinates(rank);
    std::string line;
    for (const auto dimension : active_mesh_dims()) {
      line += fmt::format("{} {} {}", line.empty() ? ":" : ",", dimension_name(dimension), place.at(dimension));
    }
    text += fmt::format("rank {}{}\n", rank, line);
  }
  return text;
}

ParallelismResolution weigh_parallelism(const std::optional<ParallelismConfig>& given, const Variables& variables,
                                        const Config& config, std::string_view given_by) {
  ParallelismResolution result;
  if (!given) {
    const auto use = resolve_setting(use_parallelism_row(), std::optional<bool>(), variables, config, given_by);
    if (!use.conflict.empty()) result.conflicts.push_back(use.conflict);
    if (!use.value.value_or(false)) return result;
  }
  const ParallelismConfig from_code = given.value_or(ParallelismConfig{});
  result.config.emplace();
  for_each_parallelism_setting([&](const auto& row) {
    const auto resolved = resolve_setting(row, row.of(from_code), variables, config, given_by);
    row.of(*result.config) = resolved.value;
    if (!resolved.conflict.empty()) result.conflicts.push_back(resolved.conflict);
  });
  return result;
}

}  // namespace accelerate::env
