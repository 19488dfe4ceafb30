// SPDX-License-Identifier: Apache-2.0
// The loader: walks a source in an epoch's order, batch by batch, and knows which batches are this rank's.
#pragma once

#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>

#include "accelerate/base/error.hpp"
#include "accelerate/data/source.hpp"
#include "accelerate/state/batch_info.hpp"

namespace accelerate::data {

struct LoaderOptions {
  /// Samples per batch of one rank.
  int64_t batch_size = 1;
  /// A new order every epoch: torch.randperm with a CPU generator seeded seed + epoch.
  bool shuffle = false;
  /// Leaves out the last samples where they do not fill a batch on every rank.
  bool drop_last = false;
  /// Seed of the orders. Unset: the seed of LibTorch's CPU generator (what torch::manual_seed set; else a random one)
  /// when the first pass begins; a prepared loader takes rank 0's.
  std::optional<uint64_t> seed{};
};

/// Batches of one rank, a pass per loop. Copies are handles of the same loader.
///
///   for (auto& [images, labels] : loader) ...      // epoch 0
///   for (auto& [images, labels] : loader) ...      // epoch 1, another order with shuffle
///
/// A loop may be left early, loops may be nested (each begin() is a pass of its own), and a pass outlives its loader.
/// Not for use from several threads at once.
class Loader {
 public:
  struct Impl;
  class Iterator;

  /// source   what is read; shared
  /// Throws Error (usage) for a batch_size below 1.
  Loader(std::shared_ptr<const Source> source, const LoaderOptions& options);

  /// Begins the next epoch's pass: of epoch() if none began yet, else of the one after it. A pass that was left early
  /// counts as its epoch.
  [[nodiscard]] Iterator begin();
  [[nodiscard]] std::default_sentinel_t end() const { return {}; }

  /// This loader's share becomes the one of `rank`, from the next begin() on; `prepare` calls it. One rank is never
  /// filled up: its last batch is short, as the samples are.
  /// Throws Error (usage) for a rank outside the world.
  void shard(int64_t rank, int64_t world_size, bool even_batches = true, const Place& place = {});

  /// Batches of this rank in a pass, the true count.
  [[nodiscard]] int64_t size() const;
  /// N, samples of the source.
  [[nodiscard]] int64_t sample_count() const;
  [[nodiscard]] int64_t batch_size() const;
  /// Samples that all ranks together take per step.
  [[nodiscard]] int64_t total_batch_size() const;
  [[nodiscard]] int64_t rank() const;
  [[nodiscard]] int64_t world_size() const;
  [[nodiscard]] bool even_batches() const;
  [[nodiscard]] const LoaderOptions& options() const;

  /// The epoch under way, or between passes the next one's.
  [[nodiscard]] int64_t epoch() const;
  /// The next begin() is of this epoch. Throws Error (usage) for a negative one.
  void set_epoch(int64_t epoch);

  /// The seed in force; fixed by this call where it was unset.
  [[nodiscard]] uint64_t seed() const;
  void set_seed(uint64_t seed);

  /// Where the innermost pass under way stands; {-1, false, -1} outside a loop, also after one that was left early.
  [[nodiscard]] state::BatchInfo info() const;

  /// The same loader, not an equal one.
  bool operator==(const Loader&) const = default;

 private:
  std::shared_ptr<Impl> impl_;
};

/// One pass; ends compare equal to std::default_sentinel. Copies share the pass.
class Loader::Iterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;
  using pointer = Batch*;
  using reference = Batch&;

  struct Pass;
  explicit Iterator(std::shared_ptr<Pass> pass) : pass_(std::move(pass)) {}

  /// The batch at hand. May be changed and moved from: it is read anew for every step.
  Batch& operator*() const;
  Batch* operator->() const { return &**this; }
  Iterator& operator++();
  void operator++(int) { ++*this; }
  bool operator==(std::default_sentinel_t) const;

  /// Where this pass stands.
  [[nodiscard]] const state::BatchInfo& info() const;

 private:
  std::shared_ptr<Pass> pass_;
};

}  // namespace accelerate::data
