// SPDX-License-Identifier: Apache-2.0
// State shared by the handles of a stream's loader, independent of its samples.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "accelerate/base/error.hpp"
#include "accelerate/data/core_parts.hpp"
#include "accelerate/data/epoch_count.hpp"
#include "accelerate/data/latest_pass.hpp"
#include "accelerate/data/load_report.hpp"
#include "accelerate/data/next_pass.hpp"
#include "accelerate/data/shard.hpp"
#include "accelerate/data/shardable.hpp"
#include "accelerate/data/source.hpp"
#include "accelerate/state/batch_info.hpp"
#include "accelerate/state/loader_state.hpp"

namespace accelerate::data {

struct StreamOptions {
  /// Samples per batch of one rank, or with Share::split_batches of all ranks together.
  int64_t batch_size = 1;
  /// Drops the last samples if they do not fill a batch on every rank.
  bool drop_last = false;
  /// For random streams. If unset, as in LoaderOptions.
  std::optional<uint64_t> seed{};
  /// As in LoaderOptions.
  std::optional<bool> pin_memory{};
  /// If 1, a thread reads and collates ahead of the loop. Larger values are refused, because one thread reads a stream.
  int64_t num_workers = 0;
  /// As in LoaderOptions.
  int64_t prefetch_factor = 2;
  std::chrono::milliseconds timeout{0};
  bool log_report = false;
};

class StreamCore : public NextPass {
 public:
  /// \param samples  Number of samples in a pass; unset if unknown.
  /// \throws Error (usage) for a batch_size below 1, and more than one worker.
  StreamCore(const StreamOptions& options, std::optional<int64_t> samples, bool seeded);

  void take(const Share& share, const Place& place);
  [[nodiscard]] uint64_t seed();
  [[nodiscard]] state::LoaderState state();
  void load_state(const state::LoaderState& from);
  void stands_at(const state::LoaderState& there);

  struct Beginning {
    ReadContext context;
    ShardOptions shard;  // batch_size is per rank
    int64_t origin;      // samples that this pass omits
    int64_t consumed;    // samples after origin that are read and dropped
  };
  /// Prepares the next epoch's pass, or the rest of a resumed one. The pass only counts after begin(), because
  /// preparing it may fail.
  [[nodiscard]] Beginning next_pass();
  /// \returns the pass's number.
  int64_t begin(const Beginning& pass);
  /// Records the position of a pass. \param complete  True if no more batches follow.
  void tell(int64_t pass, int64_t consumed, bool complete) { latest.tell(pass, consumed, complete); }
  void leave(int64_t pass, bool after_first_batch) { latest.leave(pass, after_first_batch); }
  void set_epoch(int64_t epoch);
  void end_pass(int64_t pass, int64_t epoch);

  /// See LoaderOf::with_its_front.
  [[nodiscard]] std::shared_ptr<StreamCore> with_its_front();

  /// Logs why this rank received no batch in a pass.
  ///
  /// \param samples  Number of samples in the stream.
  void warn_of_no_batch(const Beginning& pass, int64_t samples) const;

  /// Number of samples in a pass of the stream that is read, if known.
  [[nodiscard]] std::optional<int64_t> known_samples() const { return share.reads ? samples : samples_elsewhere_; }

  [[nodiscard]] ShardOptions shard_options() const { return shard_options_of(options, share); }

  StreamOptions options;
  std::optional<int64_t> samples;
  bool seeded;
  Share share{};
  EpochCount epochs{};
  LatestPass latest{};
  std::shared_ptr<LoadReport> report = std::make_shared<LoadReport>();  // of the latest pass

 private:
  [[nodiscard]] state::LoaderState here();

  Place place_{};  // this rank, for errors
  std::optional<int64_t> samples_elsewhere_{};
};

}  // namespace accelerate::data
