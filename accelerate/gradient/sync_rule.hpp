// SPDX-License-Identifier: Apache-2.0
// Whether a backward's gradients are averaged: windows and no_sync decide. A value, the same on ranks that call alike.
#pragma once

namespace accelerate::gradient {

/// Receives the events in program order. Ranks may omit a model, so only a forward whose scope differs from its
/// backward's depends on this rank having called the model.
class SyncRule {
 public:
  /// Decision for a backward that runs now.
  [[nodiscard]] bool sync() const { return sync_ || awaited_; }

  /// A window or local SGD begins, or the user decides: overrides earlier forwards.
  void decide(bool sync) {
    sync_ = sync;
    awaited_ = backward_inside_ = false;
  }
  /// A prepared forward. The backward of a synchronised forward stays due after a local forward, as in PyTorch.
  void forward(bool sync) {
    sync_ = sync;
    awaited_ = awaited_ || sync;
  }
  /// As if every rank called the model in it.
  void open_no_sync() { sync_ = backward_inside_ = false; }
  /// End of no_sync or of a window. If no backward ran inside, the backward of its forwards is still due, with their
  /// decision.
  void close_scope() { sync_ = sync_ || backward_inside_; }
  void backward() { backward_inside_ = true; }
  void reduced() { awaited_ = false; }

 private:
  bool sync_ = true;
  bool awaited_ = false;          ///< the reduction of a synchronised forward is still due
  bool backward_inside_ = false;  ///< since the scope that is open began
};

}  // namespace accelerate::gradient
