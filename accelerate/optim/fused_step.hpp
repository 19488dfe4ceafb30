// SPDX-License-Identifier: Apache-2.0
// Steps LibTorch's stock optimizers with LibTorch's own fused kernels.
#pragma once

#include <memory>

namespace torch::optim {
class Optimizer;
}

namespace accelerate::optim {

/// The fused step of one stock optimizer.
///
/// torch::optim loops over parameters with several small operators each; at::_fused_* does the same update in one pass.
/// The optimizer's own state is read and written, so options changed by user code, schedulers, saved and loaded state
/// work as before, and stock and fused steps may alternate.
class FusedStep {
 public:
  virtual ~FusedStep() = default;

  /// For exactly torch::optim::SGD, Adam and AdamW; null for every other type, subclasses included, whose step() may do
  /// something else. The optimizer must outlive the result.
  static std::unique_ptr<FusedStep> recognise(torch::optim::Optimizer& optimizer);

  /// One update of every parameter that has a gradient. False, with nothing changed, when a gradient is of a kind the
  /// kernels do not know (sparse, complex, another dtype than its parameter): the caller then takes the optimizer's own
  /// step.
  virtual bool step() = 0;
};

}  // namespace accelerate::optim
