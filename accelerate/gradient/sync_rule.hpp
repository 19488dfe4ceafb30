// SPDX-License-Identifier: Apache-2.0
// Whether a backward's gradients are averaged: windows and no_sync decide. A value, the same on ranks that call alike.
#pragma once

namespace accelerate::gradient {

/// What happens is told to it in the order of the program. Ranks may leave a model out, so nothing but a forward whose
/// scope is not its backward's rests on having called the model.
class SyncRule {
 public:
  /// Of a backward that comes now.
  [[nodiscard]] bool sync() const { return sync_ || awaited_; }

  /// A window begins, local SGD does, or the user says so: holds whatever forwards came before.
  void decide(bool sync) {
    sync_ = sync;
    awaited_ = backward_inside_ = false;
  }
  /// A prepared forward. The backward of a synchronised one stays due although a local forward comes in between, as in
  /// PyTorch.
  void forward(bool sync) {
    sync_ = sync;
    awaited_ = awaited_ || sync;
  }
  /// As if every rank called the model in it.
  void open_no_sync() { sync_ = backward_inside_ = false; }
  /// Of no_sync or of a window. Where no backward ran inside, the one of its forwards is still to come, and stays as
  /// they decided.
  void close_scope() { sync_ = sync_ || backward_inside_; }
  void backward() { backward_inside_ = true; }
  void reduced() { awaited_ = false; }

 private:
  bool sync_ = true;
  bool awaited_ = false;          ///< a synchronised forward's reduction has not come yet
  bool backward_inside_ = false;  ///< since the scope that is open began
};

}  // namespace accelerate::gradient
