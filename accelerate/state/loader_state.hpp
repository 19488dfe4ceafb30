// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace accelerate::state {

/// Where a loader stands in its epoch, for all ranks alike. An epoch's order follows from seed and epoch, so a position
/// in it says which samples have been seen.
struct LoaderState {
  int64_t epoch = 0;
  /// Samples of the epoch's order that all ranks together have consumed; 0 between epochs.
  int64_t consumed = 0;
  /// Those of them that were consumed before the present way of sharing out began.
  int64_t origin = 0;
  /// Length of the epoch's order.
  int64_t samples = 0;
  /// What kind of order it is, as a sampler calls its own ("sequential", "random"). Empty: not known.
  std::string order{};
  /// Unset: the order depends on none.
  std::optional<uint64_t> seed{};
  // How the order is shared out; batch_size is as it was asked for. Another way may go on after `consumed`.
  int64_t world_size = 1;
  int64_t batch_size = 1;
  bool split_batches = false;
  bool even_batches = true;
  bool drop_last = false;

  [[nodiscard]] bool shared_out_as(const LoaderState& other) const {
    return world_size == other.world_size && batch_size == other.batch_size && split_batches == other.split_batches &&
           even_batches == other.even_batches && drop_last == other.drop_last;
  }
  bool operator==(const LoaderState&) const = default;
};

}  // namespace accelerate::state
