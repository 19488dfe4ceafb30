// SPDX-License-Identifier: Apache-2.0
// Position of a loader that cannot return it itself: because batches were read ahead, because another rank reads, or
// because a skipping copy is iterated.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "accelerate/data/loading_report.hpp"
#include "accelerate/prepared/registry.hpp"
#include "accelerate/state/loader_state.hpp"

namespace accelerate::prepared {

/// Position of one loader, for all its handles. The argument `own` is always the current state of the loader itself. If
/// other code moved the loader since the last pass, that state is used.
class LoaderPosition {
 public:
  /// Begins a pass of a loader that rank 0 reads for all ranks.
  /// \returns The number of the pass, from 1, the same on all ranks.
  int64_t begin() { return ++passes_; }
  /// Records the progress of a pass.
  ///
  /// \param delivered  State in which the returned batches count as consumed. If unset, the loader's own state is
  ///   used.
  void set_position_state(std::optional<state::LoaderState> delivered, state::LoaderState own) {
    handed_out_ = std::move(delivered);
    own_ = std::move(own);
  }
  /// Must be called when the position or the epoch of the loader is set.
  void moved() {
    handed_out_.reset();
    own_.reset();
  }

  /// Sets the position of a loader that another rank reads for this one. The loader's own state never changes.
  void reader_values(state::LoaderState state, state::LoaderState own) {
    set_position_state(std::move(state), std::move(own));
  }

  /// Records the numbers of batches and samples of the loader that another rank reads for this one. Unset values change
  /// nothing.
  void update_reader_info(std::optional<int64_t> size, std::optional<int64_t> samples) {
    if (size) size_of_reader_ = size;
    if (samples) samples_of_reader_ = samples;
  }
  /// Unset if this rank reads its own data, or if the number is unknown.
  [[nodiscard]] std::optional<int64_t> reader_batches() const { return size_of_reader_; }
  [[nodiscard]] std::optional<int64_t> reader_samples() const { return samples_of_reader_; }

  /// Records that a pass read all batches of the loader and split them, and how many parts this rank got.
  void split(int64_t batches, int64_t parts) { parts_ = {batches, parts}; }
  /// Returns the parts of the latest such pass if it had that number of batches, otherwise nothing.
  [[nodiscard]] std::optional<int64_t> parts_of(int64_t batches) const {
    return parts_ && parts_->first == batches ? std::optional(parts_->second) : std::nullopt;
  }

  [[nodiscard]] state::LoaderState state(const state::LoaderState& own) const {
    return handed_out_ && own == own_ ? *handed_out_ : own;
  }
  /// Returns the position within an epoch at which the next pass resumes. Unset if the pass begins an epoch.
  [[nodiscard]] std::optional<state::LoaderState> resumed(const state::LoaderState& own) const {
    return own == own_ || own.consumed == 0 ? std::nullopt : std::optional(own);
  }

 private:
  std::optional<state::LoaderState> handed_out_;
  std::optional<state::LoaderState> own_;  // at the same time as handed_out_
  int64_t passes_ = 0;                     // number of passes that began
  std::optional<int64_t> size_of_reader_;
  std::optional<int64_t> samples_of_reader_;
  std::optional<std::pair<int64_t, int64_t>> parts_;
};

/// Wait times of passes that the loader itself does not time. A handle that skips batches has its own.
class LoaderTimings {
 public:
  /// Must be called when a pass begins.
  void begin(std::shared_ptr<const data::LoadingReport> report) { report_ = std::move(report); }
  /// Returns the report of the latest pass.
  [[nodiscard]] data::LoadingReport report() const { return report_ ? *report_ : data::LoadingReport{}; }

 private:
  std::shared_ptr<const data::LoadingReport> report_;
};

/// Reads and sets the position of a registered loader. A loader that skips its first batches is a separate object with
/// its own position. The position of the loader that returned the last batch is used.
class LoaderStateHandle {
 public:
  using State = state::LoaderState;

  void add(std::weak_ptr<void> handle, std::function<State()> get, std::function<void(const State&)> set) {
    handles_.add(std::move(handle), std::move(get), std::move(set));
  }
  /// Adds a loader that skips batches.
  void add_skipping(std::weak_ptr<void> loader, std::function<void(const State&)> set) {
    skipping_.add(
        std::move(loader), [] { return State{}; }, std::move(set));
  }
  /// Records a pass over a skipping loader, which may be destroyed before the run is saved. Unset for a pass over the
  /// loader itself.
  void set_position_state(std::optional<State> skipping) { elsewhere_ = std::move(skipping); }

  /// Unset if the loader does not return its position.
  [[nodiscard]] std::optional<State> get() const { return elsewhere_ ? elsewhere_ : handles_.get(); }
  void set(const State& state) {
    elsewhere_.reset();
    handles_.set(state);
    skipping_.set(state);
  }

 private:
  StateAccess<State> handles_;
  StateAccess<State> skipping_;
  std::optional<State> elsewhere_;
};

/// Number of batches of this rank that passes skip.
struct SkipCount {
  int64_t of_epoch = 0;
  /// Further batches for a pass that resumes at `rest`. They were requested when the loader was at that position.
  int64_t of_rest = 0;
  std::optional<state::LoaderState> rest{};

  void add(int64_t batches, const std::optional<state::LoaderState>& resumed) {
    if (!resumed) {
      of_epoch += batches;
      return;
    }
    if (rest != resumed) of_epoch += std::exchange(of_rest, 0);
    rest = resumed;
    of_rest += batches;
  }
  [[nodiscard]] int64_t all() const { return of_epoch + of_rest; }

  /// Returns the number of batches that the next pass skips. Batches that the epoch already consumed are not skipped
  /// again.
  ///
  /// \param resumed  Position at which the pass resumes. If unset, the pass begins an epoch.
  /// \param samples  Number of samples that all ranks together consume per step, at least 1.
  [[nodiscard]] int64_t of_pass(const std::optional<state::LoaderState>& resumed, int64_t samples) const {
    if (!resumed) return all();
    const bool resumes_rest = rest == resumed;
    const int64_t seen = (resumed->consumed + samples - 1) / samples;
    return std::max<int64_t>(of_epoch + (resumes_rest ? 0 : of_rest) - seen, 0) + (resumes_rest ? of_rest : 0);
  }
};

}  // namespace accelerate::prepared
