// SPDX-License-Identifier: Apache-2.0
// Where a loader stands: one that cannot leave out batches itself, and may have read more than was handed out; one that
// is walked by way of another.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "accelerate/data/load_report.hpp"
#include "accelerate/prepared/registry.hpp"
#include "accelerate/state/loader_state.hpp"

namespace accelerate::prepared {

/// Of one loader, whichever handle walks it. "own" is always what the loader itself says at that moment: where it was
/// moved by somebody else in between, its own word counts.
class Standing {
 public:
  /// A pass of a loader that rank 0 reads for all begins. returns   its number, from 1: alike on all ranks
  int64_t begin() { return ++passes_; }
  /// A pass came as far.
  ///
  /// handed_out   with the batches that were handed out as consumed; unset: as the loader says
  void came_to(std::optional<state::LoaderState> handed_out, state::LoaderState own) {
    handed_out_ = std::move(handed_out);
    own_ = std::move(own);
  }
  /// The loader was told where to go on, or which epoch to begin.
  void moved() {
    handed_out_.reset();
    own_.reset();
  }

  /// The same of a loader that another rank reads for this one; its own word never changes.
  void told(state::LoaderState state, state::LoaderState own) { came_to(std::move(state), std::move(own)); }

  /// Batches of the loader that another rank reads for this one and samples of its data, as it says; unset: nothing
  /// new.
  void hear(std::optional<int64_t> size, std::optional<int64_t> samples) {
    if (size) size_of_reader_ = size;
    if (samples) samples_of_reader_ = samples;
  }
  /// Unset: this rank reads its own, or the reader does not know.
  [[nodiscard]] std::optional<int64_t> size_of_reader() const { return size_of_reader_; }
  [[nodiscard]] std::optional<int64_t> samples_of_reader() const { return samples_of_reader_; }

  /// A pass went through all of the loader's batches, which were split: this rank got so many parts.
  void split(int64_t batches, int64_t parts) { parts_ = {batches, parts}; }
  /// As the latest such pass over so many batches; unset: there was none.
  [[nodiscard]] std::optional<int64_t> parts_of(int64_t batches) const {
    return parts_ && parts_->first == batches ? std::optional(parts_->second) : std::nullopt;
  }

  [[nodiscard]] state::LoaderState state(const state::LoaderState& own) const {
    return handed_out_ && own == own_ ? *handed_out_ : own;
  }
  /// The place within an epoch from which the next pass goes on; unset: it begins one.
  [[nodiscard]] std::optional<state::LoaderState> resumed(const state::LoaderState& own) const {
    return own == own_ || own.consumed == 0 ? std::nullopt : std::optional(own);
  }

 private:
  std::optional<state::LoaderState> handed_out_;
  std::optional<state::LoaderState> own_;  // when that was handed out
  int64_t passes_ = 0;                     // that began
  std::optional<int64_t> size_of_reader_;
  std::optional<int64_t> samples_of_reader_;
  std::optional<std::pair<int64_t, int64_t>> parts_;
};

/// Who waited for whom in passes whose times the loader itself does not know; a handle that skips has its own.
class Times {
 public:
  /// A pass began.
  void begin(std::shared_ptr<const data::LoadReport> report) { report_ = std::move(report); }
  /// Of the latest one.
  [[nodiscard]] data::LoadReport report() const { return report_ ? *report_ : data::LoadReport{}; }

 private:
  std::shared_ptr<const data::LoadReport> report_;
};

/// Where a loader of the registry stands. A loader that skips its first batches is another one with a place of its own,
/// but the run that walks it goes on there: the one that gave a batch last is asked.
class LoaderAccess {
 public:
  using State = state::LoaderState;

  void add(std::weak_ptr<void> handle, std::function<State()> get, std::function<void(const State&)> set) {
    handles_.add(std::move(handle), std::move(get), std::move(set));
  }
  /// One that skips.
  void add_skipping(std::weak_ptr<void> loader, std::function<void(const State&)> set) {
    skipping_.add(
        std::move(loader), [] { return State{}; }, std::move(set));
  }
  /// A pass came here, over a loader that skips; it may be gone when the run is saved. Unset: over the loader itself.
  void came_to(std::optional<State> skipping) { elsewhere_ = std::move(skipping); }

  /// Unset: it cannot say.
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

/// Batches of this rank that passes leave out.
struct Skip {
  int64_t of_epoch = 0;
  /// Of a pass that goes on from `rest` beyond that: they were asked for when the loader stood there.
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

  /// How many the next pass leaves out: what was seen of an epoch is not skipped again.
  ///
  /// resumed   where the pass goes on; unset: it begins an epoch
  /// samples   that all ranks together take per step, at least 1
  [[nodiscard]] int64_t of_pass(const std::optional<state::LoaderState>& resumed, int64_t samples) const {
    if (!resumed) return all();
    const bool asked_for_rest = rest == resumed;
    const int64_t seen = (resumed->consumed + samples - 1) / samples;
    return std::max<int64_t>(of_epoch + (asked_for_rest ? 0 : of_rest) - seen, 0) + (asked_for_rest ? of_rest : 0);
  }
};

}  // namespace accelerate::prepared
