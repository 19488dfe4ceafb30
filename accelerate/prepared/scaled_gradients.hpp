// SPDX-License-Identifier: Apache-2.0
// What loss scaling knows of one optimizer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "accelerate/precision/grad_scaler.hpp"
#include "accelerate/precision/late_read.hpp"

namespace accelerate::prepared {

/// The scale that an optimizer's gradients carry, whether inf or NaN was found in them, and which of its steps were
/// skipped for that. Flags are float32 scalars of the device, 0 or 1; the host reads them when they have come.
class ScaledGradients {
 public:
  /// A backward whose loss was multiplied by scale has added to the gradients.
  void made_with(const at::Tensor& scale);
  /// Before such a backward: gradients that carry no scale get that one, so that what is added to them is of one kind
  /// with them.
  void scale_again(const at::Tensor& scale, const std::vector<at::Tensor>& gradients);
  /// They were unscaled before scale_again(), and are to be again.
  [[nodiscard]] bool were_unscaled() const { return found_before_.defined(); }
  /// They were zeroed, or stepped on.
  void drop();
  /// They carry a scale, or did until unscale().
  [[nodiscard]] bool waiting() const { return scale_.defined(); }
  /// The scaler is about to change its scale in place; gradients that wait keep theirs.
  void keep_scale();

  /// Divides the gradients by the scale they carry, once until drop() or scale_again(). What was found before those
  /// were scaled again counts on: a clip by value hides it.
  void unscale(const precision::GradScaler& scaler, const std::vector<at::Tensor>& gradients);
  [[nodiscard]] bool unscaled() const { return found_inf_.defined(); }
  /// Of the unscaled gradients.
  [[nodiscard]] const at::Tensor& found_inf() const { return found_inf_; }
  /// The ranks have gradients of their own: what is so on one is so on all from now on, by one all-reduce of two
  /// numbers. Collective.
  void agree(const comm::Group& group);
  /// 1: the step must not be made, for inf or NaN or because backwards of different scales have been added up.
  [[nodiscard]] at::Tensor skip() const;

  /// A step was made with that flag, or would have been.
  void stepped(const at::Tensor& skip);
  [[nodiscard]] bool has_stepped() const { return stepped_; }
  void iteration_ended() { stepped_ = false; }

  /// Until end_recording() the flags of steps stay where they are: a device records those steps, and each replay gives
  /// flags anew.
  void begin_recording() { recording_ = true; }
  /// returns   where they are
  std::vector<at::Tensor> end_recording();
  /// A replay has been given to the device, and with it those flags.
  void replayed(const std::vector<at::Tensor>& flags);
  /// Of the last step, on the device; undefined: none was made.
  [[nodiscard]] at::Tensor last_flag() const;

  /// Reads the flags that are there; with wait all of them, and the host may wait for the device.
  /// Throws Error (data) for a scale at its floor.
  void read_flags(bool wait, const precision::GradScalerOptions& options, const Place& place);
  [[nodiscard]] bool all_read() const { return flags_.empty(); }
  /// As if no step had been made.
  void forget_steps();
  /// Steps that were skipped, of those whose flag was read since this was called before.
  [[nodiscard]] int64_t take_skipped() { return std::exchange(skipped_, 0); }
  /// Of the last step whose flag was read.
  [[nodiscard]] bool last_was_skipped() const { return in_a_row_ > 0; }

 private:
  void read(const precision::LateRead& flag, const precision::GradScalerOptions& options, const Place& place);

  at::Tensor scale_, found_inf_, mixed_;
  at::Tensor found_before_;                // scale_again()
  bool stepped_ = false;                   // since the last update of the scale
  std::deque<precision::LateRead> flags_;  // of steps made, the oldest first: [skip, scale]
  at::Tensor last_flag_;                   // of the last of them
  int64_t in_a_row_ = 0;                   // skipped steps
  int64_t skipped_ = 0;                    // not yet taken
  bool recording_ = false;
  std::vector<at::Tensor> recorded_;  // flags
};

}  // namespace accelerate::prepared
