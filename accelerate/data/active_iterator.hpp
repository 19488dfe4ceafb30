// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace accelerate::data {

/// Selects the pass that determines a loader's position: the one that returned a batch last. A pass that is destroyed
/// after its first batch returns that role to the surrounding loop.
class ActiveIterator {
 public:
  ActiveIterator() = default;
  /// For a copy of the loader at the same position; open passes are not copied.
  ActiveIterator(const ActiveIterator& other) : position_(other.position_) {}
  ActiveIterator& operator=(const ActiveIterator&) = delete;

  struct Position {
    int64_t epoch = 0;
    int64_t origin = 0;
    int64_t consumed = 0;
    int64_t samples = 0;    ///< number of samples in the epoch, as far as known
    bool complete = false;  ///< no more batches follow
  };

  /// Begins a pass at that position. Returns its number, from 1.
  int64_t begin(const Position& position) {
    open_.emplace(++count_, Open{position});
    activate(count_);
    return count_;
  }
  /// Records that the pass returned a batch.
  void advance_to(int64_t pass, int64_t consumed, bool complete) {
    const auto found = open_.find(pass);
    if (found == open_.end()) return;
    found->second.position.consumed = consumed;
    found->second.position.complete = complete;
    activate(pass);
  }
  /// Records that the pass reached its end.
  void end(int64_t pass) {
    close(pass);
    if (active_ == pass) position_.reset();
  }
  /// Records that the pass was destroyed. A pass that ended early keeps its position.
  void release(int64_t pass, bool after_first_batch) {
    const auto found = open_.find(pass);
    if (found == open_.end()) return;
    const auto before = open_.find(found->second.before);
    if (after_first_batch && active_ == pass && before != open_.end()) {
      active_ = before->first;
      position_ = before->second.position;
    }
    close(pass);
  }
  /// The user sets the start of the next pass, so open passes no longer determine the position.
  void clear_passes() {
    open_.clear();
    position_.reset();
  }
  /// Position of the active pass. If unset, the next pass begins an epoch.
  [[nodiscard]] const std::optional<Position>& position() const { return position_; }

 private:
  struct Open {
    Position position;
    int64_t before = 0;  // the previously active pass
  };

  void activate(int64_t pass) {
    Open& its = open_.at(pass);
    if (active_ != pass) its.before = active_;
    active_ = pass;
    position_ = its.position;
  }
  /// Removes the pass from the chain of previously active passes.
  void close(int64_t pass) {
    const auto closed = open_.extract(pass);
    if (closed.empty()) return;
    for (auto& [number, other] : open_) {
      if (other.before == pass) other.before = closed.mapped().before;
    }
  }

  std::map<int64_t, Open> open_;
  int64_t count_ = 0;
  int64_t active_ = 0;
  std::optional<Position> position_;
};

}  // namespace accelerate::data
