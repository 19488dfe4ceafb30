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
  /// Gradients are divided by it, in place; on a device also where a step is skipped. Unset: they are taken as they
  /// are.
  std::optional<at::Tensor> scale{};
  /// Not 0: nothing is updated. Unset: every step counts.
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

  /// For exactly torch::optim::SGD, Adam, AdamW, Adagrad and RMSprop; null for every other type, subclasses included,
  /// whose step() may do something else. The optimizer must outlive the result.
  static std::unique_ptr<FusedStep> recognise(torch::optim::Optimizer& optimizer);

  /// One update of every parameter that has a gradient. False, with nothing changed, when a gradient is of a kind the
  /// kernels do not know (sparse, complex, another dtype than its parameter): the caller then takes the optimizer's own
  /// step.
  /// A kernel that throws leaves the parameters of its call as they were, and the step can be made again.
  virtual bool step(const StepScale& scale = {}) = 0;

  /// The same for some of the parameters, or ranges of them: one bucket's, or this rank's share. Each parameter has its
  /// own count of steps, so that pieces may be stepped on in any order and portions. Those that have a master are
  /// stepped on in its dtype, the optimizer's state too; the value then becomes the master's.
  /// Throws Error (usage) where a piece is of no parameter of the optimizer's.
  virtual bool step(std::span<const state::Piece> pieces, const StepScale& scale = {}) = 0;

  /// Takes back the steps that a flag on a device cancelled from the optimizer's own counts; the kernels know already.
  /// Waits for the device. For whoever reads or saves the optimizer's state.
  virtual void take_back_cancelled() {}

  /// Until end_recording() steps are recorded by a device, which replays them (device/graph.hpp): what changes from
  /// step to step of the host's numbers, rates and counts, the kernels read from its memory. The counts go on for the
  /// recorded step as for any other.
  ///
  /// A step on what it makes anew (averages of a parameter without any) is an Error (usage) meanwhile, with nothing
  /// changed: replayed, it would begin anew each time.
  virtual void begin_recording() {}
  virtual RecordedNumbers end_recording() { return {}; }
  /// False: this optimizer's kernels cannot read their numbers on a device.
  [[nodiscard]] virtual bool can_record() const { return false; }
  /// Adds what a recorded step rests on: options but the rates, parameters and state.
  virtual void add_to(Fingerprint& fingerprint) = 0;
};

}  // namespace accelerate::optim
