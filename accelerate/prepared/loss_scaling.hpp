// SPDX-License-Identifier: Apache-2.0
// Loss scaling over all prepared optimizers of an Accelerator. It exists only with mixed_precision fp16.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "accelerate/gradient/coalesced.hpp"
#include "accelerate/gradient/uneven_join.hpp"
#include "accelerate/precision/grad_scaler.hpp"
#include "accelerate/prepared/accelerator_state.hpp"

namespace torch::optim {
class Optimizer;
}

namespace accelerate::prepared {

class OptimizerCore;

/// backward() multiplies the loss by the scale. A step divides the gradients by it once, and is skipped on all ranks if
/// they contain inf or NaN.
///
/// An iteration consists of one or more backwards and the steps on their gradients. When every optimizer that got
/// gradients has stepped or zeroed them, the scale is updated once. It therefore never changes while gradients carry
/// it. An optimizer that keeps its gradients while another one steps a second time does not delay the update. If a
/// backward with another scale then precedes its step, that step is skipped.
///
/// In local SGD each rank has its own gradients, or none. Every step() of an optimizer is then collective, and all
/// optimizers count as having gradients. All ranks therefore make the same decision whether a step is skipped, if they
/// call step() and zero_grad() in the same order.
///
/// On an accelerator, a steady step does not wait for the device: flags are copied to the host and read when they
/// arrive. Schedule steps that depend on a flag are deferred until the next step, which waits for the previous flag if
/// it must.
class LossScaling {
 public:
  LossScaling(AcceleratorState& shared, const precision::GradScalerOptions& options);

  [[nodiscard]] const precision::GradScaler& scaler() const { return scaler_; }
  void load_state(const precision::ScalerState& state);

  /// Must be called before a backward. Gradients that a module dropped lose their scale. Gradients that were unscaled,
  /// stepped on and not zeroed, or not made by accelerator.backward() are multiplied by the scale, so that new
  /// gradients can be added to them.
  void begin_backward();
  /// \returns The gradient with which loss.backward() starts: weight times the scale, with the loss's shape and dtype.
  [[nodiscard]] at::Tensor seed(const at::Tensor& loss, double weight) const;
  /// Records the scale of all optimizers with gradients. Gradients that were unscaled before are unscaled again.
  void backward_done();

  /// Must be called before gradients of these parameters are clipped. Unscales the gradients of the optimizers that
  /// have these parameters.
  /// \throws Error (usage) if parameters with gradients, or all parameters, belong to no prepared optimizer.
  void unscale_owners(const std::vector<at::Tensor>& parameters);
  void unscale(OptimizerCore& optimizer);
  /// Returns the norm of these parameters' gradients, divided by the current scale if they still carry it.
  [[nodiscard]] at::Tensor unscaled_norm(const at::Tensor& norm, const std::vector<at::Tensor>& parameters);

  /// Must be called before a step. Runs the schedule steps that earlier steps deferred.
  void run_deferred_schedules();
  /// Returns true in local SGD: gradients differ between the ranks, and a step on one rank is a step on all ranks.
  [[nodiscard]] bool ranks_differ() const { return accelerator_state_.local_steps > 0; }
  /// Unscales the gradients. Collective if ranks_differ(), with sharded gradients, and over the stages of a pipeline.
  /// \returns 0-dim float32 flag, 1 if the step must be skipped because of inf or NaN or mixed scales.
  /// \throws Error (usage) if the gradients were not made by accelerator.backward().
  at::Tensor skip_flag(OptimizerCore& optimizer);
  void step_done(OptimizerCore& optimizer, const at::Tensor& skip);
  void zeroed(OptimizerCore& optimizer);

  /// Returns the reason why the scale was not updated after the steps of this iteration, with the optimizer that delays
  /// it. Empty if it was updated or no step ran.
  [[nodiscard]] std::string scale_not_updated_reason() const;

  /// Calls `move` unless the last step of the optimizer was skipped: at once if that is known, otherwise before the
  /// next step.
  /// \param optimizer  If null, a skipped step of any prepared optimizer counts.
  void after_step(const torch::optim::Optimizer* optimizer, std::function<void()> move);
  /// Returns whether the last step of this optimizer was skipped. Waits for the device.
  bool was_skipped(OptimizerCore& optimizer);
  bool any_was_skipped();

  /// Makes the scale equal at the end of join_uneven_inputs(), because ranks that ran out early stepped less often.
  /// Collective.
  gradient::JoinModel join_model(const comm::Group& group);
  /// Must be called when the steps of another run replace those of this one. The flags of the current iteration then
  /// change neither the scale nor the step count, and deferred schedule steps are dropped.
  void steps_replaced();
  /// Resets the current iteration; earlier changes of the scale remain.
  void forget();

 private:
  struct DeferredStep {
    const torch::optim::Optimizer* optimizer;
    std::function<void()> move;
  };
  void throw_double_unscale(OptimizerCore& optimizer);
  void read_flags(bool wait);
  void read_flags(OptimizerCore& optimizer, bool wait);
  void run_unless_skipped(const DeferredStep& step);
  void update_when_done();
  void update();

  AcceleratorState& accelerator_state_;
  precision::GradScaler scaler_;
  at::Tensor found_inf_;  // sum over the steps of this iteration; undefined before the first step
  bool due_ = false;      // an optimizer stepped a second time in this iteration
  std::vector<DeferredStep> deferred_;
  std::unique_ptr<gradient::BufferBroadcast> for_joins_;
};

}  // namespace accelerate::prepared
