// SPDX-License-Identifier: Apache-2.0
// Steps LibTorch's stock optimizers with one pass over all parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <span>

#include "accelerate/optim/recorded_numbers.hpp"
#include "accelerate/state/piece.hpp"

namespace torch::optim {
class Optimizer;
}

namespace accelerate::optim {

/// What mixed precision adds to a step: float32 scalars on the parameters' device, which the host need not read.
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
  /// subclasses, whose step() may differ. The optimizer must outlive the result.
  static std::unique_ptr<FusedStep> recognise(torch::optim::Optimizer& optimizer);

  /// One update of every parameter that has a gradient. False, with nothing changed, when a gradient is of a kind the
  /// kernels do not know (sparse, complex, another dtype than its parameter): the caller then takes the optimizer's own
  /// step.
  /// A kernel that throws leaves the parameters of its call as they were, and the step can be made again.
  virtual bool step(const StepScale& scale = {}) = 0;

  /// The same for some of the parameters or ranges of them: one bucket's, or this rank's shard. Each parameter has its
  /// own step count, so shards may be stepped on in any order and portions. Those with a master are stepped on in its
  /// dtype, including the optimizer's state; the value is then set from the master. \throws Error (usage) if a shard
  /// belongs to no parameter of the optimizer.
  virtual bool step(std::span<const state::Piece> pieces, const StepScale& scale = {}) = 0;

  /// Removes steps that a flag on a device cancelled from the optimizer's own counts; the kernels already account for
  /// them. Waits for the device. Call before reading or saving the optimizer's state.
  virtual void take_back_cancelled() {}

  /// Until end_recording(), steps are captured by a device for replay (device/graph.hpp): rates and counts, which the
  /// host changes from step to step, are read from device memory by the kernels. The counts advance for the captured
  /// step as for any other.
  ///
  /// A step that would create state (averages of a parameter without any) is an Error (usage) during capture, without
  /// changes, because each replay would create it again.
  virtual void begin_recording() {}
  virtual RecordedNumbers end_recording() { return {}; }
  /// False: this optimizer's kernels cannot read their numbers on a device.
  [[nodiscard]] virtual bool can_record() const { return false; }
  /// Adds everything on which a captured step depends: options except rates, parameters and state.
  virtual void add_to(Fingerprint& fingerprint) = 0;
};

}  // namespace accelerate::optim
