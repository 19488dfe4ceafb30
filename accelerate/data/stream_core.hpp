// SPDX-License-Identifier: Apache-2.0
// What the handles of a stream's loader share, whatever its samples are.
#pragma once

#include <cstdint>
#include <optional>

#include "accelerate/base/error.hpp"
#include "accelerate/data/core_parts.hpp"
#include "accelerate/data/epoch_count.hpp"
#include "accelerate/data/shard.hpp"
#include "accelerate/data/shardable.hpp"
#include "accelerate/data/source.hpp"
#include "accelerate/state/batch_info.hpp"
#include "accelerate/state/loader_state.hpp"

namespace accelerate::data {

struct StreamOptions {
  /// Samples per batch of one rank; with Share::split_batches of all ranks together.
  int64_t batch_size = 1;
  /// Leaves out the last samples where they do not fill a batch on every rank.
  bool drop_last = false;
  /// Of streams that are random. Unset: as LoaderOptions' is.
  std::optional<uint64_t> seed{};
  /// As LoaderOptions' is.
  std::optional<bool> pin_memory{};
};

class StreamCore {
 public:
  /// samples   of a pass; unset: not known
  /// Throws Error (usage) for a batch_size below 1.
  StreamCore(const StreamOptions& options, std::optional<int64_t> samples, bool seeded);

  void take(const Share& share, const Place& place);
  [[nodiscard]] uint64_t seed();
  [[nodiscard]] state::LoaderState state();
  void load_state(const state::LoaderState& from);

  struct Beginning {
    ReadContext context;
    ShardOptions shard;  // batch_size: of one rank
    int64_t origin;      // samples that are left out of this pass
    int64_t consumed;    // of the others, those that are only read
    int64_t number;
  };
  [[nodiscard]] Beginning begin_pass();
  /// That pass has handed out everything up to there; complete: there is no more.
  void tell(int64_t number, int64_t consumed, bool complete);
  void set_epoch(int64_t epoch);
  void end_pass(const Beginning& pass) { epochs.end(pass.context.epoch); }

  [[nodiscard]] ShardOptions shard_options() const { return shard_options_of(options, share); }

  StreamOptions options;
  std::optional<int64_t> samples;
  bool seeded;
  Share share{};
  EpochCount epochs{};

 private:
  [[nodiscard]] state::LoaderState here();

  int64_t pass_ = 0;  // the latest
  int64_t origin_ = 0;
  int64_t consumed_ = 0;
  bool complete_ = false;
  std::optional<state::LoaderState> resumed_{};
};

}  // namespace accelerate::data
