// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "accelerate/data/load_report.hpp"
#include "accelerate/state/loader_state.hpp"

namespace accelerate::data {

/// Start of a loader's next pass: consumed samples of its epoch, and skipped batches of this rank.
struct NextPass {
  std::optional<state::LoaderState> resumed{};  ///< the place that was loaded; unset: it begins an epoch
  int64_t skipped = 0;                          ///< by every pass
  int64_t skipped_of_rest = 0;                  ///< of these, skipped from the remainder of a resumed pass

  void skip(int64_t batches) {
    skipped += batches;
    if (resumed) skipped_of_rest += batches;
  }
  /// What was seen of an epoch is not skipped again.
  [[nodiscard]] int64_t skipped_of_epoch() const { return skipped - skipped_of_rest; }
  /// It is a whole one.
  void forget_position() {
    resumed.reset();
    skipped_of_rest = 0;
  }
  /// The same pass including what it omits; unset if it omits nothing.
  ///
  /// \param here  Current state: a re-sharded position has its own front.
  [[nodiscard]] std::optional<NextPass> with_front(const state::LoaderState& here) const {
    const bool goes_on = resumed && resumed->shared_out_as(here);
    if (skipped == 0 && !goes_on) return std::nullopt;
    NextPass whole{.resumed = resumed};
    if (goes_on) whole.resumed->consumed = whole.resumed->origin;
    if (goes_on && whole.resumed->consumed == 0) whole.resumed.reset();
    return whole;
  }
};

/// Core of a loader with that next pass, for use beside the original: without log lines and on the calling thread.
template <typename Core>
[[nodiscard]] std::shared_ptr<Core> core_beside(const Core& core, const std::optional<NextPass>& pass) {
  if (!pass) return nullptr;
  auto beside = std::make_shared<Core>(core);
  static_cast<NextPass&>(*beside) = *pass;
  beside->options.num_workers = 0;
  beside->options.log_report = false;
  beside->report = std::make_shared<LoadReport>();
  return beside;
}

/// Another rank, which reads for this one, has reached the loaded position: behaves as a pass that was left there.
template <typename Core>
void leave_where_loaded(Core& core) {
  if (!core.resumed) return;  // between passes
  const state::LoaderState there = *core.resumed;
  core.forget_position();
  core.epochs.begin();
  (void)core.latest.begin(
      {.epoch = there.epoch, .origin = there.origin, .consumed = there.consumed, .samples = there.samples});
}

}  // namespace accelerate::data
