// SPDX-License-Identifier: Apache-2.0
// Decides whether the gradients of a backward are averaged, from windows and no_sync. A value; it is equal on ranks
// with the same calls.
#pragma once

namespace accelerate::gradient {

/// Receives the events in program order. Ranks may omit a model, so the result depends on this rank's calls of the
/// model only if forward and backward are in different scopes.
class SyncRule {
 public:
  /// Decision for a backward that runs now.
  [[nodiscard]] bool sync() const { return sync_ || awaited_; }

  /// Begins a window or local SGD, or sets the user's decision. Overrides earlier forwards.
  void decide(bool sync) {
    sync_ = sync;
    awaited_ = backward_inside_ = false;
  }
  /// Records a prepared forward. The backward of a synchronised forward stays due after a local forward, as in PyTorch.
  void forward(bool sync) {
    sync_ = sync;
    awaited_ = awaited_ || sync;
  }
  /// Assumes that every rank calls the model within no_sync.
  void open_no_sync() { sync_ = backward_inside_ = false; }
  /// Ends no_sync or a window. If no backward ran inside, the backward of its forwards is still due, with their
  /// decision.
  void close_scope() { sync_ = sync_ || backward_inside_; }
  void backward() { backward_inside_ = true; }
  void reduced() { awaited_ = false; }

 private:
  bool sync_ = true;
  bool awaited_ = false;          ///< true if the reduction of a synchronised forward is still due
  bool backward_inside_ = false;  ///< true if a backward ran since the current scope began
};

}  // namespace accelerate::gradient
