// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace accelerate::state {

/// Position of a loader in its epoch, equal on all ranks. Seed and epoch determine the epoch's order, so the position
/// determines which samples have been consumed.
struct LoaderState {
  int64_t epoch = 0;
  /// Samples of the epoch's order that all ranks together have consumed; 0 between epochs.
  int64_t consumed = 0;
  /// Samples that had been consumed before the present sharding began.
  int64_t origin = 0;
  /// Length of the epoch's order.
  int64_t samples = 0;
  /// Kind of order, as named by the sampler ("sequential", "random"). Empty if unknown.
  std::string order{};
  /// Seed of the order. Unset if the order does not depend on a seed.
  std::optional<uint64_t> seed{};
  // How the order is sharded; batch_size is the requested one. Another sharding can continue after `consumed`.
  int64_t world_size = 1;
  int64_t batch_size = 1;
  bool split_batches = false;
  bool even_batches = true;
  bool drop_last = false;

  [[nodiscard]] bool has_same_sharding(const LoaderState& other) const {
    return world_size == other.world_size && batch_size == other.batch_size && split_batches == other.split_batches &&
           even_batches == other.even_batches && drop_last == other.drop_last;
  }
  bool operator==(const LoaderState&) const = default;
};

}  // namespace accelerate::state
