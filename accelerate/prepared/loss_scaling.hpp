// SPDX-License-Identifier: Apache-2.0
// Loss scaling over all prepared optimizers of an Accelerator: there with mixed_precision fp16 only.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "accelerate/gradient/coalesced.hpp"
#include "accelerate/gradient/uneven_join.hpp"
#include "accelerate/precision/grad_scaler.hpp"
#include "accelerate/prepared/shared.hpp"

namespace torch::optim {
class Optimizer;
}

namespace accelerate::prepared {

class OptimizerCore;

/// backward() multiplies the loss by the scale, a step divides the gradients by it once, and is skipped where inf or
/// NaN is found in them, on all ranks alike.
///
/// An iteration is one or more backwards and the steps on their gradients: when every optimizer that got gradients has
/// stepped or zeroed them, the scale is updated, once, however many optimizers there are. So it never changes while
/// gradients that carry it wait. An optimizer that leaves its gradients for a second round of another one does not hold
/// the update up; if a backward of another scale then comes before its step, that is skipped.
///
/// In local SGD each rank has gradients of its own, or none: there every step() of an optimizer is collective, and all
/// optimizers count as having got gradients, so that the ranks decide alike as long as they step and zero alike.
///
/// On an accelerator nothing here waits for the device in a steady step: flags are copied to the host and read when
/// they are there. What depends on them (schedules) is owed until the next step, which waits for the flag of the one
/// before if it must.
class LossScaling {
 public:
  LossScaling(Shared& shared, const precision::GradScalerOptions& options);

  [[nodiscard]] const precision::GradScaler& scaler() const { return scaler_; }
  void load_state(const precision::ScalerState& state);

  /// Before a backward: gradients that a module dropped carry no scale; those that were unscaled, stepped on and not
  /// zeroed, or made without us carry it from now on, so that what is added to them is of one kind with them.
  void begin_backward();
  /// returns   what loss.backward() begins with: weight times the scale, of the loss's shape and dtype
  [[nodiscard]] at::Tensor seed(const at::Tensor& loss, double weight) const;
  /// Optimizers with gradients know from now on what scale they carry: none, where they had been unscaled.
  void backward_done();

  /// Before gradients of these parameters are clipped: unscales those of the optimizers they belong to.
  /// Throws Error (usage) where they belong to no prepared optimizer.
  void unscale_owners(const std::vector<at::Tensor>& parameters);
  void unscale(OptimizerCore& optimizer);
  /// The norm of these parameters' gradients without the present scale, if they still carry it.
  [[nodiscard]] at::Tensor without_scale(const at::Tensor& norm, const std::vector<at::Tensor>& parameters);

  /// Before a step: what is owed to the steps before it.
  void move_what_is_owed();
  /// A step on this rank is one on all of them, whatever gradients each has: in local SGD.
  [[nodiscard]] bool ranks_differ() const { return shared_.local_steps > 0; }
  /// returns   0-dim float32 flag, 1: inf or NaN, the step must not be made; the gradients are unscaled. Collective
  ///           where ranks_differ().
  /// Throws Error (usage) for gradients that accelerator.backward() did not make.
  at::Tensor skip_flag(OptimizerCore& optimizer);
  void step_done(OptimizerCore& optimizer, const at::Tensor& skip);
  void zeroed(OptimizerCore& optimizer);

  /// Why the scale was not updated after the steps of this iteration, with the optimizer that it waits for; empty: it
  /// was, or there was no step.
  [[nodiscard]] std::string why_not_updated() const;

  /// Calls move unless the last step of an optimizer was skipped: now where that is known, else before the next step.
  /// optimizer   null: any of the prepared ones
  void when_stepped(const torch::optim::Optimizer* optimizer, std::function<void()> move);
  /// Waits for the device. Whether the last step of this optimizer was skipped.
  bool was_skipped(OptimizerCore& optimizer);
  bool any_was_skipped();

  /// Makes the scale equal where a join_uneven_inputs ends: ranks that left it early stepped less often. Collective.
  gradient::JoinModel join_model(const comm::Group& group);
  /// The job's steps are those of another run from now on: what this one's iteration found changes no scale, its flags
  /// no count, and schedules are owed nothing.
  void steps_replaced();
  /// As if nothing had been done but the scale's changes.
  void forget();

 private:
  struct Owed {
    const torch::optim::Optimizer* optimizer;
    std::function<void()> move;
  };
  void refuse_twice(OptimizerCore& optimizer);
  void read_flags(bool wait);
  void read_flags(OptimizerCore& optimizer, bool wait);
  void move_unless_skipped(const Owed& owed);
  void update_when_done();
  void update();

  Shared& shared_;
  precision::GradScaler scaler_;
  at::Tensor found_inf_;  // of this iteration's steps, summed; undefined: none was made
  bool due_ = false;      // an optimizer came round again
  std::vector<Owed> owed_;
  std::unique_ptr<gradient::BufferBroadcast> for_joins_;
};

}  // namespace accelerate::prepared
