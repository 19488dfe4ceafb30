// SPDX-License-Identifier: Apache-2.0
// The loss scale of torch.amp.GradScaler, computed on device scalars that the host need not read.
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

/// Options and defaults of torch.amp.GradScaler.
struct GradScalerOptions {
  /// Initial scale; above 0.
  double init_scale = 65536.0;
  /// Factor of the scale after growth_interval consecutive iterations without inf or NaN; above 1.
  double growth_factor = 2.0;
  /// Factor of the scale after an iteration with inf or NaN; between 0 and 1.
  double backoff_factor = 0.5;
  /// Number of iterations; at least 1.
  int64_t growth_interval = 2000;
  /// Minimum scale. If inf or NaN would reduce the scale below it, an error is thrown: the gradients are then NaN at
  /// any scale, and training stalls. 0 disables the minimum, as in PyTorch.
  double min_scale = 1.0 / 16384;
  bool operator==(const GradScalerOptions&) const = default;
};

/// \throws Error (usage), with the option, its value and its range, if an option is out of range.
void check_grad_scaler_options(const GradScalerOptions& options, const RankContext& place);

/// Sums this rank's flags over the ranks of a group by one all-reduce. All ranks of the group must call.
///
/// \param flags  0-dim or [n], on any device.
/// \returns the sums, equal on every rank, with the flags' shape, dtype and device.
[[nodiscard]] at::Tensor summed_over(const comm::Group& group, const at::Tensor& flags);

/// All tensors are 0-dim on the scaler's device; only state() makes the host wait. Not thread-safe.
class GradScaler {
 public:
  /// \throws Error (usage) as check_grad_scaler_options() does.
  GradScaler(const GradScalerOptions& options, at::Device device, const RankContext& place);

  /// float32; update() and load_state() change it in place.
  [[nodiscard]] const at::Tensor& scale() const { return scale_; }
  [[nodiscard]] const at::Tensor& growth_tracker() const { return growth_tracker_; }
  [[nodiscard]] const GradScalerOptions& options() const { return options_; }

  /// Multiplies gradients by 1/scale in place and checks them for inf and NaN.
  ///
  /// \param gradients  Dense, on any devices. Float16 gradients throw Error (usage), as in PyTorch.
  /// \param scale      Float32 scale with which they were computed.
  /// \param over       If set, each rank of the group has its own gradients or a part. The result combines all ranks by
  ///                   one all-reduce of one number. All ranks of the group must call. If null, the gradients are
  ///                   complete.
  /// \returns float32: 0 if all are finite, otherwise above 0.
  [[nodiscard]] at::Tensor unscale(const std::vector<at::Tensor>& gradients, const at::Tensor& scale,
                                   const comm::Group* over = nullptr) const;

  /// Ends an iteration.
  /// \param found_inf  Float32; not 0 if a gradient of the iteration was inf or NaN.
  void update(const at::Tensor& found_inf);

  /// Waits for the device.
  [[nodiscard]] ScalerState state() const;
  /// Sets scale, factors, interval and tracker to the saved ones. \throws Error (data) for an invalid scale or tracker;
  /// Error (usage) as check_grad_scaler_options() does.
  void load_state(const ScalerState& state);
  /// \returns the options after load_state(), with the same exceptions.
  [[nodiscard]] GradScalerOptions loadable(const ScalerState& state) const;

 private:
  GradScalerOptions options_;
  RankContext place_;
  at::Tensor scale_, growth_tracker_;
};

}  // namespace accelerate::precision
