// SPDX-License-Identifier: Apache-2.0
// Steps LibTorch's stock optimizers with one pass over all parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <span>

#include "accelerate/optim/captured_scalars.hpp"
#include "accelerate/state/parameter_shard.hpp"

namespace torch::optim {
class Optimizer;
}

namespace accelerate::optim {

/// Inputs of a step for mixed precision: float32 scalars on the parameters' device, which the host need not read.
struct StepScale {
  /// Divisor of the gradients, applied in place; on a device also if the step is skipped. If unset, gradients are
  /// unchanged.
  std::optional<at::Tensor> scale{};
  /// If it is not 0, nothing is updated. If unset, every step counts.
  std::optional<at::Tensor> skip{};
};

/// The fused step of one stock optimizer.
///
/// torch::optim loops over parameters with several small operators each; a fused kernel does the same update in one
/// pass. The optimizer's own state is read and written, so options changed by user code, schedulers, saved and loaded
/// state work as before, and stock and fused steps may alternate.
class FusedStep {
 public:
  virtual ~FusedStep() = default;

  /// Supports exactly torch::optim::SGD, Adam, AdamW, Adagrad and RMSprop. Returns null for all other types, including
  /// subclasses, because their step() may differ. The optimizer must outlive the result.
  static std::unique_ptr<FusedStep> for_optimizer(torch::optim::Optimizer& optimizer);

  /// Updates every parameter that has a gradient. Returns false, with nothing changed, if a gradient is of an
  /// unsupported kind (sparse, complex, another dtype than its parameter). The caller then runs the optimizer's own
  /// step. If a kernel throws, the parameters of its call are unchanged, and the step can be repeated.
  virtual bool step(const StepScale& scale = {}) = 0;

  /// The same for some of the parameters or ranges of them: a bucket, or this rank's shard. Each parameter has its own
  /// step count, so shards may be updated in any order and portions. If a shard has a master, the master and the
  /// optimizer's state (in the master's dtype) are updated, and the value is then set from the master.
  /// \throws Error (usage) if a shard belongs to no parameter of the optimizer.
  virtual bool step(std::span<const state::ParameterShard> parameter_shards, const StepScale& scale = {}) = 0;

  /// Removes steps that a flag on a device cancelled from the optimizer's own counts; the kernels already account for
  /// them. Waits for the device. Call before reading or saving the optimizer's state.
  virtual void discard_skipped_steps() {}

  /// Until end_capture(), steps are captured by a device for replay (device/graph.hpp): the kernels read rates and
  /// counts, which the host changes from step to step, from device memory. The counts advance for the captured step as
  /// for any other.
  ///
  /// A step that would create state (averages of a parameter without any) throws Error (usage) during capture, without
  /// changes, because each replay would create it again.
  virtual void begin_capture() {}
  virtual CapturedScalars end_capture() { return {}; }
  /// False if the optimizer's kernels cannot read rates and counts from device memory.
  [[nodiscard]] virtual bool can_capture() const { return false; }
  /// Adds everything on which a captured step depends: options except rates, parameters and state.
  virtual void add_to(CaptureFingerprint& fingerprint) = 0;
};

}  // namespace accelerate::optim
