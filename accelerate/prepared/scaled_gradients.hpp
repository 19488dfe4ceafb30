// SPDX-License-Identifier: Apache-2.0
// Loss scaling state of one optimizer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "accelerate/precision/async_scalar_read.hpp"
#include "accelerate/precision/grad_scaler.hpp"

namespace accelerate::prepared {

/// The scale of an optimizer's gradients, the inf or NaN found in them, and the steps that were skipped because of
/// that. Flags are float32 scalars on the device, 0 or 1. The host reads them when they arrive.
class ScaledGradients {
 public:
  /// Must be called after a backward with a loss that was multiplied by `scale` has added to the gradients.
  void mark_scaled(const at::Tensor& scale);
  /// Must be called before such a backward. Multiplies gradients that carry no scale by it, so that new gradients can
  /// be added to them.
  void rescale(const at::Tensor& scale, const std::vector<at::Tensor>& gradients);
  /// Returns true if the gradients were unscaled before rescale() and must be unscaled once more.
  [[nodiscard]] bool was_unscaled_before_rescale() const { return found_before_.defined(); }
  /// Must be called after the gradients were zeroed or stepped on.
  void reset_scale();
  /// Returns true if the gradients carry a scale, or did until unscale().
  [[nodiscard]] bool has_scale() const { return scale_.defined(); }
  /// Must be called before the scaler changes its scale in place. Pending gradients keep the old scale.
  void freeze_scale();

  /// Divides the gradients by their scale, once until reset_scale() or rescale(). Inf or NaN found before rescale()
  /// still counts, because clipping by value may have removed it.
  void unscale(const precision::GradScaler& scaler, const std::vector<at::Tensor>& gradients);
  [[nodiscard]] bool unscaled() const { return found_inf_.defined(); }
  /// Flag of the unscaled gradients.
  [[nodiscard]] const at::Tensor& found_inf() const { return found_inf_; }
  /// Combines the flags of all ranks if ranks have gradients of their own, by one all-reduce of two numbers.
  /// Collective.
  void agree(const comm::Group& group);
  /// Returns 1 if the step must be skipped, because of inf or NaN or because backwards with different scales were added
  /// up.
  [[nodiscard]] at::Tensor skip() const;

  /// Records a step with that flag, whether it was made or skipped.
  void record_step(const at::Tensor& skip);
  [[nodiscard]] bool has_stepped() const { return stepped_; }
  void iteration_ended() { stepped_ = false; }

  /// Until end_capture(), the flags of steps are kept apart, because the device captures these steps and each replay
  /// writes new flags.
  void begin_capture() { capture_ = true; }
  /// \returns The flags of the captured steps.
  std::vector<at::Tensor> end_capture();
  /// Must be called after a replay that writes these flags was launched.
  void replayed(const std::vector<at::Tensor>& flags);
  /// Returns the flag of the last step, on the device. Undefined before the first step.
  [[nodiscard]] at::Tensor last_flag() const;

  /// Reads the flags that have arrived. With `wait`, reads all flags, and the host may wait for the device.
  /// \throws Error (data) if the loss scale is at its minimum.
  void read_flags(bool wait, const precision::GradScalerOptions& options, const RankContext& place);
  [[nodiscard]] bool flags_resolved() const { return flags_.empty(); }
  /// Drops the flags and the counts of all steps.
  void forget_steps();
  /// Returns the number of skipped steps among those with flags that were read since the previous call.
  [[nodiscard]] int64_t take_skipped() { return std::exchange(skipped_, 0); }
  /// Returns whether the last step with a flag that was read was skipped.
  [[nodiscard]] bool last_was_skipped() const { return in_a_row_ > 0; }

 private:
  void read(const precision::AsyncScalarRead& flag, const precision::GradScalerOptions& options,
            const RankContext& place);

  at::Tensor scale_, found_inf_, mixed_;
  at::Tensor found_before_;                       // found_inf_ before rescale()
  bool stepped_ = false;                          // since the last update of the scale
  std::deque<precision::AsyncScalarRead> flags_;  // unread, the oldest first: [skip, scale]
  at::Tensor last_flag_;                          // of the last step
  int64_t in_a_row_ = 0;                          // skipped steps
  int64_t skipped_ = 0;                           // since take_skipped()
  bool capture_ = false;
  std::vector<at::Tensor> recorded_;  // flags of captured steps
};

}  // namespace accelerate::prepared
