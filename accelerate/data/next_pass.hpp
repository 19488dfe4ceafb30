// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "accelerate/data/load_report.hpp"
#include "accelerate/state/loader_state.hpp"

namespace accelerate::data {

/// Where a loader's next pass begins: what was seen of its epoch, and the batches of this rank that are skipped.
struct NextPass {
  std::optional<state::LoaderState> resumed{};  ///< the place that was loaded; unset: it begins an epoch
  int64_t skipped = 0;                          ///< by every pass
  int64_t skipped_of_rest = 0;                  ///< of them by the resumed one, of what is left

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
  /// The same with what it leaves out; unset: it leaves out nothing.
  ///
  /// here   how things stand: a place that is shared out anew has a front of its own
  [[nodiscard]] std::optional<NextPass> with_front(const state::LoaderState& here) const {
    const bool goes_on = resumed && resumed->shared_out_as(here);
    if (skipped == 0 && !goes_on) return std::nullopt;
    NextPass whole{.resumed = resumed};
    if (goes_on) whole.resumed->consumed = whole.resumed->origin;
    if (goes_on && whole.resumed->consumed == 0) whole.resumed.reset();
    return whole;
  }
};

/// A loader's core whose next pass is that one, to be walked beside it: silently, and on the calling thread.
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

/// Another rank, which reads for this one, has come to the place that was loaded: as if a pass of this one's had been
/// left there.
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
