// SPDX-License-Identifier: Apache-2.0
// Registry entry of a loader, and its setup in prepare(): shard of this rank, seed of rank 0, upload stream.
#pragma once

#include <c10/util/Type.h>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "accelerate/data/loader.hpp"
#include "accelerate/data/loader_concepts.hpp"
#include "accelerate/data/loading_report.hpp"
#include "accelerate/device/upload.hpp"
#include "accelerate/prepared/accelerator_state.hpp"
#include "accelerate/prepared/dispatch_pass.hpp"
#include "accelerate/prepared/loader_position.hpp"
#include "accelerate/prepared/pass_order.hpp"
#include "accelerate/tree/members.hpp"
#include "accelerate/tree/tree.hpp"

namespace accelerate::prepared {

/// Returns rank 0's seed on every rank. Collective.
[[nodiscard]] uint64_t seed_of_rank_0(uint64_t seed, const comm::Group& group);

/// Returns true if rank 0 reads for all ranks of the world.
template <typename Loader>
[[nodiscard]] bool dispatches(const comm::Group& world, const LoaderOptions& options) {
  return world.size() > 1 && options.dispatch_batches.value_or(data::Streaming<Loader> && options.device_placement);
}

[[nodiscard]] inline data::ShardSpec share_of(const comm::Group& group, const LoaderOptions& options) {
  return {.rank = group.rank(),
          .world_size = group.size(),
          .even_batches = options.even_batches,
          .split_batches = options.split_batches};
}

/// A loader that is a list of its batches, such as std::vector.
template <typename Loader>
concept HoldsBatches = data::Counted<Loader> && requires(const Loader& loader) {
  { loader[size_t{}] } -> std::same_as<const batch_t<Loader>&>;
};

/// A loader that reports the wait times of its latest pass.
template <typename Loader>
concept Reports = requires(const Loader& loader) {
  { loader.report() } -> std::convertible_to<data::LoadingReport>;
};

/// Returns a report before any pass: only the number of workers and whether a single thread reads.
template <typename Loader>
[[nodiscard]] data::LoadingReport readers_of(const Loader& loader) {
  data::LoadingReport report{.num_workers = -1};
  if constexpr (requires {
                  { loader.options().num_workers } -> std::convertible_to<int64_t>;
                }) {
    report = {.num_workers = loader.options().num_workers, .single_reader = data::Streaming<Loader>};
    if constexpr (requires {
                    { loader.source()->thread_safe() } -> std::convertible_to<bool>;
                  }) {
      report.single_reader = !loader.source()->thread_safe();
      if (report.single_reader) report.num_workers = std::min<int64_t>(report.num_workers, 1);
    }
  }
  return report;
}

/// Registry entry of a loader.
class LoaderCore : public Entry {
 public:
  static constexpr Kind kEntryKind = Kind::loader;
  explicit LoaderCore(const void* identity) : Entry(kEntryKind, identity) {}
  /// Has no handles if the loader cannot return its position.
  std::shared_ptr<LoaderStateHandle> access = std::make_shared<LoaderStateHandle>();
  /// Shared by all handles of the loader.
  std::shared_ptr<LoaderPosition> position_state = std::make_shared<LoaderPosition>();
  std::shared_ptr<LoaderTimings> times = std::make_shared<LoaderTimings>();
  /// Null unless the loader draws its order from the CPU generator, see DrawsOrder.
  std::shared_ptr<PassOrder> order{};
};

/// Gives the loader this rank's shard and rank 0's seed, if it accepts them. Collective over the world for a loader
/// with a seed, because ranks of one model read the same batches.
template <typename Loader>
void divide_round(Loader& loader, const job::MeshGroups& mesh, const LoaderOptions& options, const RankContext& place) {
  const bool dispatched = dispatches<Loader>(mesh.world, options);
  if constexpr (!tree::packable<batch_t<Loader>>) {
    if (dispatched) throw_not_packable(place);
  }
  if constexpr (!tree::names_all_members<batch_t<Loader>>) {
    if (dispatched) refuse_unnamed_members(c10::demangle_type<batch_t<Loader>>(), place);
  }
  if constexpr (data::Shardable<Loader>) {
    const data::ShardSpec all{.reads = mesh.world.rank() == 0, .reports = false};
    data::assign_shard(loader, dispatched ? all : share_of(mesh.data, options), place);
  }
  if constexpr (data::Seedable<Loader>) {
    const bool seeded = data::Streaming<Loader> || data::needs_seed(loader);  // workers of a stream always use a seed
    if (mesh.world.size() > 1 && seeded) loader.set_seed(seed_of_rank_0(loader.seed(), mesh.world));
  }
}

/// Returns the upload stream to this rank's device; null if batches stay on the CPU or pin_memory is false.
template <typename Loader>
[[nodiscard]] std::shared_ptr<device::UploadStream> lane_for(const Loader& loader, const AcceleratorState& shared,
                                                             const LoaderOptions& options) {
  bool pinned = options.device_placement && !shared.device.is_cpu();
  if constexpr (requires {
                  { loader.options().pin_memory } -> std::convertible_to<std::optional<bool>>;
                }) {
    pinned = pinned && loader.options().pin_memory.value_or(true);
  }
  return pinned ? std::make_shared<device::UploadStream>(shared.device) : nullptr;
}

}  // namespace accelerate::prepared
