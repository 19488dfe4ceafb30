// SPDX-License-Identifier: Apache-2.0
// What a loader decides whatever its batches are: whose samples come when.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "accelerate/base/error.hpp"
#include "accelerate/data/load_report.hpp"
#include "accelerate/data/sampler.hpp"
#include "accelerate/data/shardable.hpp"
#include "accelerate/data/source.hpp"
#include "accelerate/state/batch_info.hpp"
#include "accelerate/state/loader_state.hpp"

namespace accelerate::data {

struct LoaderOptions {
  /// Samples per batch of one rank; with Share::split_batches of all ranks together.
  int64_t batch_size = 1;
  /// A new order every epoch: torch.randperm with a CPU generator seeded seed + epoch.
  bool shuffle = false;
  /// Leaves out the last samples where they do not fill a batch on every rank.
  bool drop_last = false;
  /// Seed of the orders. Unset: the seed of LibTorch's CPU generator (what torch::manual_seed set; else a random one)
  /// when the first pass begins; a prepared loader takes rank 0's.
  std::optional<uint64_t> seed{};
  /// Says which samples an epoch visits, and in which order; excludes shuffle.
  SamplerPtr sampler{};
  /// Makes the batches; excludes batch_size, shuffle, sampler and drop_last.
  BatchSampler batch_sampler{};
  /// Threads that read ahead of the loop, in order; 0: batches are read when they are asked for.
  int64_t num_workers = 0;
  /// Batches per worker that are read and not yet taken.
  int64_t prefetch_factor = 2;
  /// Longest wait for a batch of a worker's, then an error names its samples. 0: as long as it takes.
  std::chrono::milliseconds timeout{0};
  /// Through pinned memory, on a stream of their own and one batch ahead prepare() copies batches to an accelerator.
  /// Unset: so; false: when they are due, on the current stream. The same on all ranks; nothing on the CPU.
  std::optional<bool> pin_memory{};
  /// At the end of each pass a line of the log (level info) says report().
  bool log_report = false;
};

/// A handle: copies refer to the same loader.
class LoaderBase {
 public:
  static constexpr bool says_why_empty = true;

  /// This loader's share from the next begin() on; `prepare` calls it. One rank is never filled up: its last batch is
  /// short, as the samples are.
  /// Throws Error (usage) for a rank outside the world, a batch_size that split_batches cannot split.
  void shard(const Share& share, const Place& place = {});

  /// Batches of this rank in a whole pass, the true count; a resumed one has those that are left.
  [[nodiscard]] int64_t size() const;
  /// N, samples of the source; a sampler may visit more or less of them.
  [[nodiscard]] int64_t sample_count() const;
  /// Samples per batch of this rank.
  [[nodiscard]] int64_t batch_size() const;
  /// Samples that all ranks together take per step.
  [[nodiscard]] int64_t total_batch_size() const;
  [[nodiscard]] const Share& share() const;
  [[nodiscard]] const LoaderOptions& options() const;

  /// The epoch under way, or between passes the next one's.
  [[nodiscard]] int64_t epoch() const;
  /// The next begin() is of this epoch. Throws Error (usage) for a negative one.
  void set_epoch(int64_t epoch);

  /// Where the latest pass stands: the batch that its user holds counts as consumed, one that could not be read does
  /// not. A pass that was left early stays where it was left; one that ended is the beginning of the next epoch. The
  /// same on every rank that holds its batch of the same number. Fixes the seed.
  [[nodiscard]] state::LoaderState state() const;
  /// The next begin() goes on from there: with the same share the batches that would have followed; with another world
  /// size or batch size the samples of the epoch's order that come after, shared out anew, each exactly once but for
  /// what fills the last batches (the order's front, of what is left). Later epochs are whole.
  /// Throws Error (usage) for a state of an order of another length, and for numbers that no loader gives.
  void load_state(const state::LoaderState& state);
  /// Another rank, which reads for this one, has come there: what a pass of this one's would have left.
  void stands_at(const state::LoaderState& state);

  /// The seed in force; fixed by this call where it was unset.
  [[nodiscard]] uint64_t seed() const;
  void set_seed(uint64_t seed);
  /// The order, or what is read, depends on the seed.
  [[nodiscard]] bool shuffles() const;

  /// Sources that can read into pinned memory from the next begin() on; `prepare` calls it where batches go to an
  /// accelerator.
  void read_pinned(bool on);

  /// Who waited for whom in the latest pass.
  [[nodiscard]] LoadReport report() const;

  /// The same loader, not an equal one.
  bool operator==(const LoaderBase&) const = default;

 protected:
  struct Core;
  class Pass;

  /// seeded   what is read depends on the seed
  /// Throws Error (usage) for a batch_size below 1, and for options that exclude one another.
  LoaderBase(int64_t samples, const LoaderOptions& options, bool seeded);

  /// A loader with the same settings whose passes begin `batches` later. Throws Error (usage) for a negative number.
  [[nodiscard]] std::shared_ptr<Core> skipping(int64_t batches) const;
  [[nodiscard]] std::shared_ptr<Core> core_with_its_front() const;

  std::shared_ptr<Core> core_;
};

/// One pass as lists of indices; reads nothing.
class LoaderBase::Pass {
 public:
  /// Begins the next epoch's. workers   says who reads
  /// Throws Error (usage) for samples that are not there.
  Pass(std::shared_ptr<Core> loader, const LoadReport& workers);
  ~Pass();
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  using Clock = LoadClock::Clock;

  /// Goes to the next batch. returns   its samples, [B] int64; undefined at the end
  at::Tensor advance();
  /// That batch is there, and is consumed. since   it has been; unset: it was read while the loop waited
  void arrived(std::optional<Clock::time_point> since = {});
  /// The loop stood still for so long to have a later one.
  void waited(Clock::duration duration);
  /// The samples of the batch after this one; undefined where there is none.
  [[nodiscard]] at::Tensor next_indices() const;
  /// Batches of this pass.
  [[nodiscard]] int64_t size() const;
  /// The samples of batch `number` of this pass, for any thread; outlives the pass.
  [[nodiscard]] std::function<at::Tensor(int64_t)> indices() const;
  [[nodiscard]] bool ended() const;
  /// Stays the same during the pass.
  [[nodiscard]] const ReadContext& context() const;
  [[nodiscard]] const state::BatchInfo& info() const;
  /// Looks at the whole order.
  [[nodiscard]] OrderPrint order_print() const;

 private:
  struct Steps;
  std::unique_ptr<Steps> steps_;
};

}  // namespace accelerate::data
