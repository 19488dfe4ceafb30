// SPDX-License-Identifier: Apache-2.0
// Counts backwards in accumulate() scopes, to detect a scope at the wrong place of a program.
#pragma once

#include <cstdint>

#include "accelerate/base/error.hpp"
#include "accelerate/state/batch_info.hpp"

namespace accelerate::prepared {

/// The accumulate() scope that was opened last, and whether the program uses such scopes at all.
///
/// One scope is one micro-batch. It may contain several backwards: of two models, of parts of a batch, or of the
/// batches of a loop that is nested in it. If the loop in which the scope was opened advances between two backwards in
/// it, or, for a scope outside every loop, any loop does, the scope is a mistake: the whole loop would be one
/// micro-batch.
class MicroBatchScope {
 public:
  /// \param loop  The active loop over a prepared loader; null outside every loop.
  void open(const state::BatchInfo* loop) {
    ++open_;
    ++number_;
    managed_ = true;
    backwards_ = 0;
    opened_in_ = loop_ = loop;
    batch_ = loop == nullptr ? -1 : loop->index;
  }
  void close() { --open_; }
  /// Must be called if the program opens and ends windows itself.
  void managed_by_program() { managed_ = true; }

  /// \param loop  The innermost open loop over a prepared loader; null outside every loop.
  /// \param steps  gradient_accumulation_steps.
  /// \throws Error (usage) if the loop advanced since the scope's last backward, as described above.
  void begin_backward(const state::BatchInfo* loop, int64_t steps, const RankContext& place);
  void record_step() { backwards_since_step_ = 0; }

  [[nodiscard]] bool is_open() const { return open_ > 0; }
  /// Number of the latest scope. It differs between scopes.
  [[nodiscard]] int64_t number() const { return number_; }
  /// Backwards in this scope.
  [[nodiscard]] int64_t backwards() const { return backwards_; }
  /// Backwards since an optimizer stepped, inside and outside of scopes.
  [[nodiscard]] int64_t backwards_since_step() const { return backwards_since_step_; }
  /// Returns true if an optimizer steps now, before `steps` backwards ran, and the program never opened a scope.
  [[nodiscard]] bool is_missing(int64_t steps) const {
    return !managed_ && backwards_since_step_ > 0 && backwards_since_step_ < steps;
  }

 private:
  int64_t open_ = 0;
  int64_t number_ = 0;
  bool managed_ = false;
  const state::BatchInfo* opened_in_ = nullptr;  // only compared
  int64_t backwards_ = 0;
  int64_t backwards_since_step_ = 0;
  // The loop and its batch at the last backward in this scope. The pointer is only compared.
  const state::BatchInfo* loop_ = nullptr;
  int64_t batch_ = -1;
};

}  // namespace accelerate::prepared
