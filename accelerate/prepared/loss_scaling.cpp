// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/loss_scaling.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>
#include <fmt/format.h>

#include <algorithm>

#include "accelerate/comm/user_call.hpp"
#include "accelerate/optim/parameter_groups.hpp"
#include "accelerate/prepared/optimizer.hpp"

namespace accelerate::prepared {

LossScaling::LossScaling(Shared& shared, const precision::GradScalerOptions& options)
    : shared_(shared), scaler_(options, shared.device, shared.place) {}

at::Tensor LossScaling::seed(const at::Tensor& loss, double weight) const {
  const at::NoGradGuard no_grad;
  return at::full_like(loss, weight).mul_(scaler_.scale().to(loss.device(), !loss.is_cpu()));
}

void LossScaling::begin_backward() {
  for (OptimizerCore& optimizer : shared_.registry.of<OptimizerCore>()) {
    ScaledGradients& scaled = optimizer.scaled();
    const bool has_some = optimizer.has_gradient();
    // Gradients without a scale, to which this backward adds: they were stepped on and not zeroed, or were not made by
    // accelerator.backward(). If optimizers share parameters, only the one that stepped counts them.
    const bool left = !scaled.waiting() && has_some && (optimizer.spent() || !optimizer.shares_parameters());
    if (!scaled.waiting() && !left) continue;
    if (scaled.waiting() && !has_some && !ranks_differ()) {
      scaled.drop();
    } else if (scaled.unscaled() || left) {
      scaled.scale_again(scaler_.scale(), has_some ? optimizer.flat_gradients() : std::vector<at::Tensor>());
    }
  }
}

void LossScaling::backward_done() {
  for (OptimizerCore& optimizer : shared_.registry.of<OptimizerCore>()) {
    ScaledGradients& scaled = optimizer.scaled();
    const bool reached = optimizer.has_gradient();
    if (!reached && !ranks_differ()) continue;
    if (!reached) scaled.drop();  // without a gradient, the scale of an earlier backward is void
    scaled.made_with(scaler_.scale());
    if (scaled.were_unscaled()) scaled.unscale(scaler_, optimizer.flat_gradients());
  }
}

void LossScaling::unscale_owners(const std::vector<at::Tensor>& parameters) {
  const auto asked = optim::keys_of(parameters);
  auto of_nobody = asked;
  std::vector<OptimizerCore*> owners;
  for (OptimizerCore& optimizer : shared_.registry.of<OptimizerCore>()) {
    if (!optimizer.has_any_of(asked)) continue;
    owners.push_back(&optimizer);
    for (const auto& group : optimizer.optimizer().param_groups()) {
      for (const at::Tensor& parameter : group.params()) of_nobody.erase(parameter.unsafeGetTensorImpl());
    }
  }
  if (owners.empty() && !asked.empty()) {
    base::fail(ErrorKind::usage, shared_.place, "clip_grad",
               "none of the {} parameters belongs to a prepared optimizer, so their gradients keep the loss scale of "
               "fp16; give the optimizer to prepare()",
               asked.size());
  }
  for (const at::Tensor& parameter : parameters) {  // parameters without a gradient do not count
    if (!parameter.grad().defined()) of_nobody.erase(parameter.unsafeGetTensorImpl());
  }
  if (!of_nobody.empty()) {
    base::fail(
        ErrorKind::usage, shared_.place, "clip_grad",
        "{} of the {} parameters belong to no prepared optimizer, so their gradients keep the loss scale of fp16 "
        "beside the others'; clip those of the optimizer alone",
        of_nobody.size(), asked.size());
  }
  for (OptimizerCore* owner : owners) unscale(*owner);
}

void LossScaling::unscale(OptimizerCore& optimizer) {
  if (!optimizer.scaled().waiting() || !optimizer.has_gradient()) return;
  refuse_twice(optimizer);
  optimizer.scaled().unscale(scaler_, optimizer.flat_gradients());
  shared_.watch.release(optimizer);
}

// Each optimizer records only whether its own gradients are unscaled.
void LossScaling::refuse_twice(OptimizerCore& optimizer) {
  if (optimizer.scaled().unscaled() || !optimizer.shares_parameters()) return;
  const auto keys = optim::keys_of(optim::parameters_of(optimizer.optimizer()));
  for (OptimizerCore& other : shared_.registry.of<OptimizerCore>()) {
    // After a later backward, the gradients of `other` carry a scale again.
    const bool has_unscaled = (other.spent() && !other.scaled().waiting()) || other.scaled().unscaled();
    if (&other == &optimizer || !has_unscaled || !other.has_any_of(keys)) continue;
    base::fail(
        ErrorKind::usage, shared_.place, "optimizer.step",
        "{} and {} have a parameter in common, and the first has unscaled its gradient, which the other would do "
        "again; with mixed_precision fp16 give every parameter to one optimizer, or use bf16",
        other.name(), optimizer.name());
  }
}

at::Tensor LossScaling::without_scale(const at::Tensor& norm, const std::vector<at::Tensor>& parameters) {
  const auto asked = optim::keys_of(parameters);
  for (OptimizerCore& optimizer : shared_.registry.of<OptimizerCore>()) {
    if (optimizer.scaled().unscaled() && optimizer.has_any_of(asked)) return norm;
  }
  return norm / scaler_.scale().to(norm.device(), !norm.is_cpu());
}

void LossScaling::move_what_is_owed() {
  read_flags(/*wait=*/!owed_.empty());
  for (const Owed& owed : std::exchange(owed_, {})) move_unless_skipped(owed);
}

at::Tensor LossScaling::skip_flag(OptimizerCore& optimizer) {
  ScaledGradients& scaled = optimizer.scaled();
  // other ranks may have gradients
  if (!scaled.waiting() && ranks_differ() && !optimizer.has_gradient()) backward_done();
  if (!scaled.waiting()) {
    base::fail(
        ErrorKind::usage, shared_.place, "optimizer.step",
        "accelerator.backward() made none of this optimizer's gradients since its last step or zero_grad(); with "
        "mixed_precision fp16 the loss is scaled there: call it instead of loss.backward()");
  }
  refuse_twice(optimizer);
  scaled.unscale(scaler_, optimizer.flat_gradients());
  // Reduced gradients and their flags are the same on all ranks; those of local SGD are not.
  if (ranks_differ()) {
    comm::in_user_call("optimizer.step", "whether gradients overflowed on any rank is not known", shared_.place,
                       [&] { scaled.agree(shared_.group); });
  }
  return scaled.skip();
}

void LossScaling::step_done(OptimizerCore& optimizer, const at::Tensor& skip) {
  ScaledGradients& scaled = optimizer.scaled();
  due_ = due_ || scaled.has_stepped();
  found_inf_ = found_inf_.defined() ? found_inf_ + scaled.found_inf() : scaled.found_inf();
  scaled.stepped(skip);
  scaled.drop();
  update_when_done();
}

void LossScaling::zeroed(OptimizerCore& optimizer) {
  optimizer.scaled().drop();
  update_when_done();
}

void LossScaling::update_when_done() {
  if (!found_inf_.defined()) return;
  for (OptimizerCore& optimizer : shared_.registry.of<OptimizerCore>()) {
    // The module itself may have zeroed the gradients. In local SGD only this rank would detect that.
    const bool has_some = ranks_differ() || optimizer.has_gradient();
    if (!due_ && optimizer.scaled().waiting() && has_some) return;
  }
  update();
}

std::string LossScaling::why_not_updated() const {
  if (!found_inf_.defined()) return {};
  for (OptimizerCore& optimizer : shared_.registry.of<OptimizerCore>()) {
    if (!optimizer.scaled().waiting()) continue;
    return fmt::format(
        "{} has gradients of the step and neither steps nor zeroes them in it, so the loss scale would not be updated "
        "in replays; zero them there",
        optimizer.name());
  }
  return "the loss scale was not updated in it";
}

void LossScaling::update() {
  for (OptimizerCore& optimizer : shared_.registry.of<OptimizerCore>()) {
    optimizer.scaled().keep_scale();
    optimizer.scaled().iteration_ended();
  }
  scaler_.update(std::exchange(found_inf_, at::Tensor()));
  due_ = false;
}

void LossScaling::read_flags(bool wait) {
  for (OptimizerCore& optimizer : shared_.registry.of<OptimizerCore>()) read_flags(optimizer, wait);
}

// Each call of step() was counted as a step of the job, so skipped steps are subtracted.
void LossScaling::read_flags(OptimizerCore& optimizer, bool wait) {
  optimizer.scaled().read_flags(wait, scaler_.options(), shared_.place);
  const int64_t skipped = optimizer.scaled().take_skipped();
  if (optimizer.index() == 0) shared_.steps -= skipped;
}

void LossScaling::move_unless_skipped(const Owed& owed) {
  for (OptimizerCore& optimizer : shared_.registry.of<OptimizerCore>()) {
    const bool asked = owed.optimizer == nullptr || owed.optimizer == &optimizer.optimizer();
    if (asked && optimizer.scaled().last_was_skipped()) return;
  }
  owed.move();
}

void LossScaling::when_stepped(const torch::optim::Optimizer* optimizer, std::function<void()> move) {
  auto all = shared_.registry.of<OptimizerCore>();
  const bool known = std::ranges::all_of(all, [](OptimizerCore& one) { return one.scaled().all_read(); });
  if (known && owed_.empty()) return move_unless_skipped({optimizer, std::move(move)});
  owed_.push_back({optimizer, std::move(move)});
}

bool LossScaling::was_skipped(OptimizerCore& optimizer) {
  read_flags(optimizer, /*wait=*/true);
  return optimizer.scaled().last_was_skipped();
}

bool LossScaling::any_was_skipped() {
  bool any = false;
  for (OptimizerCore& optimizer : shared_.registry.of<OptimizerCore>()) any = was_skipped(optimizer) || any;
  return any;
}

gradient::JoinModel LossScaling::join_model(const comm::Group& group) {
  const std::vector<gradient::NamedTensor> state{{"loss scale", scaler_.scale()},
                                                 {"growth tracker", scaler_.growth_tracker()}};
  if (!for_joins_) for_joins_ = std::make_unique<gradient::BufferBroadcast>(group, state);
  return {nullptr, for_joins_.get()};
}

void LossScaling::load_state(const precision::ScalerState& state) {
  for (OptimizerCore& optimizer : shared_.registry.of<OptimizerCore>()) optimizer.scaled().keep_scale();
  scaler_.load_state(state);
}

void LossScaling::steps_replaced() {
  forget();
  for (OptimizerCore& optimizer : shared_.registry.of<OptimizerCore>()) optimizer.scaled().forget_steps();
}

void LossScaling::forget() {
  shared_.watch.release_all();
  found_inf_.reset();
  due_ = false;
  owed_.clear();
}

}  // namespace accelerate::prepared
