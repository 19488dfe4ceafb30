// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "accelerate/data/loading_report.hpp"
#include "accelerate/state/loader_state.hpp"

namespace accelerate::data {

/// Start of a loader's next pass: consumed samples of its epoch, and skipped batches of this rank.
struct ResumePoint {
  std::optional<state::LoaderState> resumed{};  ///< loaded position; if unset, the pass begins an epoch
  int64_t skipped = 0;                          ///< batches that every pass skips
  int64_t skipped_in_remainder = 0;             ///< part of skipped that applies to the remainder of a resumed pass

  void skip(int64_t batches) {
    skipped += batches;
    if (resumed) skipped_in_remainder += batches;
  }
  /// Skipped batches that count from the start of the epoch; consumed ones are not skipped again.
  [[nodiscard]] int64_t skipped_in_epoch() const { return skipped - skipped_in_remainder; }
  /// Makes the next pass a whole one.
  void clear_position() {
    resumed.reset();
    skipped_in_remainder = 0;
  }
  /// The same pass including the skipped and consumed batches; unset if there are none.
  ///
  /// \param here  Current state: a re-sharded position has its own front.
  [[nodiscard]] std::optional<ResumePoint> with_front(const state::LoaderState& here) const {
    const bool goes_on = resumed && resumed->has_same_sharding(here);
    if (skipped == 0 && !goes_on) return std::nullopt;
    ResumePoint whole{.resumed = resumed};
    if (goes_on) whole.resumed->consumed = whole.resumed->origin;
    if (goes_on && whole.resumed->consumed == 0) whole.resumed.reset();
    return whole;
  }
};

/// Core of a loader with that next pass, for use beside the original. It logs no report and reads on the calling
/// thread.
template <typename Core>
[[nodiscard]] std::shared_ptr<Core> core_for_front(const Core& core, const std::optional<ResumePoint>& pass) {
  if (!pass) return nullptr;
  auto beside = std::make_shared<Core>(core);
  static_cast<ResumePoint&>(*beside) = *pass;
  beside->options.num_workers = 0;
  beside->options.log_report = false;
  beside->report = std::make_shared<LoadingReport>();
  return beside;
}

/// For a rank that another rank reads for: behaves as if a pass had ended early at the loaded position.
template <typename Core>
void restore_loaded_position(Core& core) {
  if (!core.resumed) return;  // between passes
  const state::LoaderState there = *core.resumed;
  core.clear_position();
  core.epochs.begin();
  (void)core.latest.begin(
      {.epoch = there.epoch, .origin = there.origin, .consumed = there.consumed, .samples = there.samples});
}

}  // namespace accelerate::data
