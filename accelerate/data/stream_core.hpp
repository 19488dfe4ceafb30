// SPDX-License-Identifier: Apache-2.0
// State shared by the handles of a stream's loader, independent of its samples.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "accelerate/base/error.hpp"
#include "accelerate/data/active_iterator.hpp"
#include "accelerate/data/epoch_counter.hpp"
#include "accelerate/data/loader_common.hpp"
#include "accelerate/data/loader_concepts.hpp"
#include "accelerate/data/loading_report.hpp"
#include "accelerate/data/resume_point.hpp"
#include "accelerate/data/shard.hpp"
#include "accelerate/data/source.hpp"
#include "accelerate/state/batch_info.hpp"
#include "accelerate/state/loader_state.hpp"

namespace accelerate::data {

struct StreamOptions {
  /// Samples per batch of one rank, or with ShardSpec::split_batches of all ranks together.
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

class StreamCore : public ResumePoint {
 public:
  /// \param samples  Number of samples in a pass; unset if unknown.
  /// \throws Error (usage) for a batch_size below 1, and more than one worker.
  StreamCore(const StreamOptions& options, std::optional<int64_t> samples, bool seeded);

  void take(const ShardSpec& shard_spec, const RankContext& place);
  [[nodiscard]] uint64_t seed();
  [[nodiscard]] state::LoaderState state();
  void load_state(const state::LoaderState& from);
  void set_position(const state::LoaderState& there);

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
  void advance_to(int64_t pass, int64_t consumed, bool complete) { latest.advance_to(pass, consumed, complete); }
  void release(int64_t pass, bool after_first_batch) { latest.release(pass, after_first_batch); }
  void set_epoch(int64_t epoch);
  void end_pass(int64_t pass, int64_t epoch);

  /// See LoaderOf::with_skipped_front.
  [[nodiscard]] std::shared_ptr<StreamCore> with_skipped_front();

  /// Logs the reason why this rank received no batch in a pass.
  ///
  /// \param samples  Number of samples in the stream.
  void warn_about_empty_rank(const Beginning& pass, int64_t samples) const;

  /// Number of samples in a pass of the stream that is read, if known.
  [[nodiscard]] std::optional<int64_t> known_samples() const { return shard_spec.reads ? samples : samples_elsewhere_; }

  [[nodiscard]] ShardOptions shard_options() const { return shard_options_of(options, shard_spec); }

  StreamOptions options;
  std::optional<int64_t> samples;
  bool seeded;
  ShardSpec shard_spec{};
  EpochCounter epochs{};
  ActiveIterator latest{};
  std::shared_ptr<LoadingReport> report = std::make_shared<LoadingReport>();  // of the latest pass

 private:
  [[nodiscard]] state::LoaderState here();

  RankContext place_{};  // this rank, for errors
  std::optional<int64_t> samples_elsewhere_{};
};

}  // namespace accelerate::data
