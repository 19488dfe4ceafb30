// SPDX-License-Identifier: Apache-2.0
// The loss scale of float16: what torch.amp.GradScaler computes, on scalars of the device that the host need not read.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/precision/scaler_state.hpp"

namespace accelerate::comm {
class Group;
}

namespace accelerate::precision {

/// torch.amp.GradScaler's, with its defaults.
struct GradScalerOptions {
  /// The first scale; above 0.
  double init_scale = 65536.0;
  /// What the scale is multiplied by after growth_interval iterations in a row without inf or NaN; above 1.
  double growth_factor = 2.0;
  /// What the scale is multiplied by after an iteration with inf or NaN; between 0 and 1.
  double backoff_factor = 0.5;
  /// Iterations; at least 1.
  int64_t growth_interval = 2000;
  /// A scale that inf or NaN would bring below this is an error: gradients that overflow whatever the scale are NaN,
  /// and training stands still. 0: no such floor, as in PyTorch.
  double min_scale = 1.0 / 16384;
  bool operator==(const GradScalerOptions&) const = default;
};

/// Throws Error (usage) with the option, its value and what it must be.
void check(const GradScalerOptions& options, const Place& place);

/// Flags of this rank, summed over the ranks of a group by one all-reduce. All ranks of it call.
///
/// flags     0-dim, or [n], of any device
/// returns   the same on every rank; of the flags' shape, dtype and device
[[nodiscard]] at::Tensor summed_over(const comm::Group& group, const at::Tensor& flags);

/// All tensors here are 0-dim on the scaler's device; nothing but state() makes the host wait.
class GradScaler {
 public:
  /// Throws Error (usage) as check().
  GradScaler(const GradScalerOptions& options, at::Device device, const Place& place);

  /// float32; changed in place by update() and load_state().
  [[nodiscard]] const at::Tensor& scale() const { return scale_; }
  [[nodiscard]] const at::Tensor& growth_tracker() const { return growth_tracker_; }
  [[nodiscard]] const GradScalerOptions& options() const { return options_; }

  /// Multiplies gradients by 1/scale in place and looks for inf and NaN in them.
  ///
  /// gradients   dense, of any devices; float16 is refused, as in PyTorch: Error (usage)
  /// scale       they were made with, float32
  /// over        the ranks of a group have gradients of their own, or a part each: whether any has inf or NaN, by one
  ///             all-reduce of one number. All ranks of it call then. Null: these are all.
  /// returns     float32: 0 where all of them are finite, else above 0
  [[nodiscard]] at::Tensor unscale(const std::vector<at::Tensor>& gradients, const at::Tensor& scale,
                                   const comm::Group* over = nullptr) const;

  /// The end of an iteration.
  /// found_inf   float32, not 0: a gradient of the iteration was inf or NaN
  void update(const at::Tensor& found_inf);

  /// Waits for the device.
  [[nodiscard]] ScalerState state() const;
  /// Scale, factors, interval and tracker become the saved ones. Throws Error: data for a scale or tracker
  /// that is none, usage as check().
  void load_state(const ScalerState& state);
  /// returns   the options after load_state(), which throws the same.
  [[nodiscard]] GradScalerOptions loadable(const ScalerState& state) const;

 private:
  GradScalerOptions options_;
  Place place_;
  at::Tensor scale_, growth_tracker_;
};

}  // namespace accelerate::precision
