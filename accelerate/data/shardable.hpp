// SPDX-License-Identifier: Apache-2.0
// What prepare() asks of a loader. Anything that can be walked is one; these are what it may offer beyond that.
#pragma once

#include <concepts>
#include <cstdint>

#include "accelerate/base/error.hpp"
#include "accelerate/state/batch_info.hpp"

namespace accelerate::data {

/// Told its rank and world it reads only that rank's share: loader.shard(rank, world_size), which may take
/// `bool even_batches` third and a Place for its errors fourth. Any other loader is read whole and dealt.
template <typename Loader>
concept Shardable = requires(Loader& loader, int64_t rank, int64_t world_size) {
  loader.shard(rank, world_size);
};

/// Its order comes from a seed, which becomes rank 0's: loader.seed(), loader.set_seed(uint64_t). With shuffles() it
/// may say that it needs none.
template <typename Loader>
concept Seedable = requires(Loader& loader, uint64_t seed) {
  { loader.seed() } -> std::convertible_to<uint64_t>;
  loader.set_seed(seed);
};

/// Its iterator knows where it stands: position.info() refers to a BatchInfo that stays where it is while the iterator
/// lives. Of any other loader one batch is read ahead to know the end.
template <typename Iterator>
concept KnowsItsPlace = requires(const Iterator& position) {
  { position.info() } -> std::same_as<const state::BatchInfo&>;
};

/// It knows its number of batches: of this rank where it is Shardable, else of all together.
template <typename Loader>
concept Counted = requires(const Loader& loader) {
  { loader.size() } -> std::integral;
};

template <Shardable Loader>
void give_share(Loader& loader, int64_t rank, int64_t world_size, bool even_batches, const Place& place) {
  if constexpr (requires { loader.shard(rank, world_size, even_batches, place); }) {
    loader.shard(rank, world_size, even_batches, place);
  } else if constexpr (requires { loader.shard(rank, world_size, even_batches); }) {
    loader.shard(rank, world_size, even_batches);
  } else {
    loader.shard(rank, world_size);
  }
}

template <Seedable Loader>
[[nodiscard]] bool needs_seed(const Loader& loader) {
  if constexpr (requires {
                  { loader.shuffles() } -> std::convertible_to<bool>;
                }) {
    return loader.shuffles();
  } else {
    return true;
  }
}

}  // namespace accelerate::data
