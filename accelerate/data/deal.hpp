// SPDX-License-Identifier: Apache-2.0
// Whole batches dealt to ranks: for loaders that make their batches themselves (any size, any length).
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "accelerate/base/error.hpp"

namespace accelerate::data {

struct DealOptions {
  int64_t rank = 0;
  int64_t world_size = 1;
  /// Drops the batches of a last round in which not every rank gets one.
  bool drop_last = false;
  /// Repeats whole batches, the first round's in their order, until every rank has the same number.
  bool even_batches = true;
};

/// Numbers of the batches one rank takes out of `batches`, in order: rank, rank + P, rank + 2P ...
///
/// Throws Error (usage) for a negative number of batches, a world_size below 1, a rank outside the world.
[[nodiscard]] std::vector<int64_t> deal_batches(int64_t batches, const DealOptions& options, const Place& place = {});

/// deal_batches for a stream whose length nobody knows: batches go in one by one, this rank's come out.
///
/// Keeps references to the first `rank` batches for the filling at the end, and with drop_last the one that waits for
/// its round to be complete.
template <typename Batch>
class BatchDealer {
 public:
  explicit BatchDealer(const DealOptions& options, const Place& place = {}) : options_(options) {
    (void)deal_batches(0, options, place);  // checks them
  }

  /// The stream's next batch. Returns one for this rank when one is ready.
  std::optional<Batch> feed(Batch batch) {
    const int64_t turn = fed_++ % options_.world_size;
    if (options_.even_batches && fed_ <= options_.rank) first_round_.push_back(batch);
    if (turn == options_.rank) waiting_ = std::move(batch);
    const bool round_complete = turn == options_.world_size - 1;
    if (options_.drop_last && !round_complete) return std::nullopt;
    return std::exchange(waiting_, std::nullopt);
  }

  /// The stream has ended. Returns the copy that makes this rank's count even, if it needs one.
  std::optional<Batch> finish() {
    waiting_.reset();
    const int64_t dealt = fed_ % options_.world_size;  // batches of the incomplete round
    if (dealt == 0 || options_.rank < dealt || options_.drop_last || !options_.even_batches) return std::nullopt;
    const int64_t first_round = fed_ < options_.world_size ? fed_ : options_.world_size;
    return first_round_[static_cast<size_t>((options_.rank - dealt) % first_round)];
  }

  /// Batches seen so far on all ranks together.
  [[nodiscard]] int64_t fed() const { return fed_; }

 private:
  DealOptions options_;
  int64_t fed_ = 0;
  std::optional<Batch> waiting_;
  std::vector<Batch> first_round_;
};

}  // namespace accelerate::data
