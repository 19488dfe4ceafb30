// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/loss_scaling.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>
#include <fmt/format.h>

#include <algorithm>

#include "accelerate/comm/error_context.hpp"
#include "accelerate/optim/parameter_groups.hpp"
#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/optimizer.hpp"
#include "accelerate/sharding/fully_sharded_parameters.hpp"

namespace accelerate::prepared {

LossScaling::LossScaling(AcceleratorState& shared, const precision::GradScalerOptions& options)
    : accelerator_state_(shared), scaler_(options, shared.device, shared.place) {}

at::Tensor LossScaling::seed(const at::Tensor& loss, double weight) const {
  const at::NoGradGuard no_grad;
  return at::full_like(loss, weight).mul_(scaler_.scale().to(loss.device(), !loss.is_cpu()));
}

void LossScaling::begin_backward() {
  for (OptimizerCore& optimizer : accelerator_state_.registry.of<OptimizerCore>()) {
    ScaledGradients& scaled = optimizer.scaled();
    const bool has_some = optimizer.has_gradient_on_any_stage();
    // Gradients without a scale, to which this backward adds: they were stepped on and not zeroed, or were not made by
    // accelerator.backward(). If optimizers share parameters, only the one that stepped counts them.
    const bool left = !scaled.has_scale() && has_some && (optimizer.step_consumed() || !optimizer.shares_parameters());
    if (!scaled.has_scale() && !left) continue;
    if (scaled.has_scale() && !has_some && !ranks_differ()) {
      scaled.reset_scale();
    } else if (scaled.unscaled() || left) {
      scaled.rescale(scaler_.scale(), has_some ? optimizer.flat_gradients() : std::vector<at::Tensor>());
    }
  }
}

void LossScaling::backward_done() {
  for (OptimizerCore& optimizer : accelerator_state_.registry.of<OptimizerCore>()) {
    ScaledGradients& scaled = optimizer.scaled();
    const bool reached = optimizer.has_gradient_on_any_stage();
    if (!reached && !ranks_differ()) continue;
    if (!reached) scaled.reset_scale();  // without a gradient, the scale of an earlier backward is void
    scaled.mark_scaled(scaler_.scale());
    if (scaled.was_unscaled_before_rescale()) scaled.unscale(scaler_, optimizer.flat_gradients());
  }
}

void LossScaling::unscale_owners(const std::vector<at::Tensor>& parameters) {
  const auto keys = optim::keys_of(parameters);
  auto of_nobody = keys;
  std::vector<OptimizerCore*> owners;
  for (OptimizerCore& optimizer : accelerator_state_.registry.of<OptimizerCore>()) {
    if (!optimizer.has_any_of(keys)) continue;
    owners.push_back(&optimizer);
    for (const auto& group : optimizer.optimizer().param_groups()) {
      for (const at::Tensor& parameter : group.params()) of_nobody.erase(parameter.unsafeGetTensorImpl());
    }
  }
  const bool is_of_stage = accelerator_state_.mesh.pipeline.size() > 1;  // a stage may have nothing trainable
  const auto has_gradient = [](const at::Tensor& parameter) { return parameter.grad().defined(); };
  if (owners.empty() && is_of_stage && std::ranges::none_of(parameters, has_gradient)) return;
  if (owners.empty() && !keys.empty()) {
    base::fail(ErrorKind::usage, accelerator_state_.place, "clip_grad",
               "none of the {} parameters belongs to a prepared optimizer, so their gradients keep the loss scale of "
               "fp16; give the optimizer to prepare()",
               keys.size());
  }
  const auto sharded = fully_sharded_models(accelerator_state_);
  for (const at::Tensor& parameter : parameters) {  // parameters without a gradient do not count
    const void* key = parameter.unsafeGetTensorImpl();
    const auto has_part = [&](const auto* model) { return model->has_gradient({key}); };
    if (!parameter.grad().defined() && !std::ranges::any_of(sharded, has_part)) of_nobody.erase(key);
  }
  if (!of_nobody.empty()) {
    base::fail(
        ErrorKind::usage, accelerator_state_.place, "clip_grad",
        "{} of the {} parameters belong to no prepared optimizer, so their gradients keep the loss scale of fp16 "
        "beside the others'; clip those of the optimizer alone",
        of_nobody.size(), keys.size());
  }
  for (OptimizerCore* owner : owners) unscale(*owner);
}

void LossScaling::unscale(OptimizerCore& optimizer) {
  if (!optimizer.scaled().has_scale() || !optimizer.has_gradient()) return;
  throw_double_unscale(optimizer);
  optimizer.scaled().unscale(scaler_, optimizer.flat_gradients());
  accelerator_state_.watch.release(optimizer);
}

// Each optimizer records only whether its own gradients are unscaled.
void LossScaling::throw_double_unscale(OptimizerCore& optimizer) {
  if (optimizer.scaled().unscaled() || !optimizer.shares_parameters()) return;
  const auto keys = optim::keys_of(optim::parameters_of(optimizer.optimizer()));
  for (OptimizerCore& other : accelerator_state_.registry.of<OptimizerCore>()) {
    // After a later backward, the gradients of `other` carry a scale again.
    const bool has_unscaled = (other.step_consumed() && !other.scaled().has_scale()) || other.scaled().unscaled();
    if (&other == &optimizer || !has_unscaled || !other.has_any_of(keys)) continue;
    base::fail(
        ErrorKind::usage, accelerator_state_.place, "optimizer.step",
        "{} and {} have a parameter in common, and the first has unscaled its gradient, which the other would do "
        "again; with mixed_precision fp16 give every parameter to one optimizer, or use bf16",
        other.name(), optimizer.name());
  }
}

at::Tensor LossScaling::unscaled_norm(const at::Tensor& norm, const std::vector<at::Tensor>& parameters) {
  const auto keys = optim::keys_of(parameters);
  for (OptimizerCore& optimizer : accelerator_state_.registry.of<OptimizerCore>()) {
    if (optimizer.scaled().unscaled() && optimizer.has_any_of(keys)) return norm;
  }
  return norm / scaler_.scale().to(norm.device(), !norm.is_cpu());
}

void LossScaling::run_deferred_schedules() {
  read_flags(/*wait=*/!deferred_.empty());
  for (const DeferredStep& step : std::exchange(deferred_, {})) run_unless_skipped(step);
}

at::Tensor LossScaling::skip_flag(OptimizerCore& optimizer) {
  ScaledGradients& scaled = optimizer.scaled();
  // other ranks may have gradients
  if (!scaled.has_scale() && ranks_differ() && !optimizer.has_gradient()) backward_done();
  if (!scaled.has_scale()) {
    base::fail(
        ErrorKind::usage, accelerator_state_.place, "optimizer.step",
        "accelerator.backward() made none of this optimizer's gradients since its last step or zero_grad(); with "
        "mixed_precision fp16 the loss is scaled there: call it instead of loss.backward()");
  }
  throw_double_unscale(optimizer);
  scaled.unscale(scaler_, optimizer.flat_gradients());
  // Reduced gradients and their flags are the same on all ranks; those of local SGD and parts of gradients are not.
  if (ranks_differ() || optimizer.has_sharded_gradients()) {
    comm::with_operation_context("optimizer.step", "it is unknown whether gradients overflowed on any rank",
                                 accelerator_state_.place, [&] { scaled.agree(accelerator_state_.group); });
  }
  // The ranks of a model skip a step together, because each has a part of its gradients.
  for (const comm::Group* group : {&accelerator_state_.mesh.tensor, &accelerator_state_.mesh.pipeline}) {
    if (group->size() == 1) continue;
    comm::with_operation_context("optimizer.step", "it is unknown whether gradients overflowed on any rank",
                                 accelerator_state_.place, [&] { scaled.agree(*group); });
  }
  return scaled.skip();
}

void LossScaling::step_done(OptimizerCore& optimizer, const at::Tensor& skip) {
  ScaledGradients& scaled = optimizer.scaled();
  due_ = due_ || scaled.has_stepped();
  found_inf_ = found_inf_.defined() ? found_inf_ + scaled.found_inf() : scaled.found_inf();
  scaled.record_step(skip);
  scaled.reset_scale();
  update_when_done();
}

void LossScaling::zeroed(OptimizerCore& optimizer) {
  optimizer.scaled().reset_scale();
  update_when_done();
}

void LossScaling::update_when_done() {
  if (!found_inf_.defined()) return;
  for (OptimizerCore& optimizer : accelerator_state_.registry.of<OptimizerCore>()) {
    // The module itself may have zeroed the gradients. In local SGD only this rank would detect that.
    const bool has_some = ranks_differ() || optimizer.has_gradient_on_any_stage();
    if (!due_ && optimizer.scaled().has_scale() && has_some) return;
  }
  update();
}

std::string LossScaling::scale_not_updated_reason() const {
  if (!found_inf_.defined()) return {};
  for (OptimizerCore& optimizer : accelerator_state_.registry.of<OptimizerCore>()) {
    if (!optimizer.scaled().has_scale()) continue;
    return fmt::format(
        "{} has gradients of the step and neither steps nor zeroes them in it, so the loss scale would not be updated "
        "in replays; zero them there",
        optimizer.name());
  }
  return "the loss scale was not updated in it";
}

void LossScaling::update() {
  for (OptimizerCore& optimizer : accelerator_state_.registry.of<OptimizerCore>()) {
    optimizer.scaled().freeze_scale();
    optimizer.scaled().iteration_ended();
  }
  scaler_.update(std::exchange(found_inf_, at::Tensor()));
  due_ = false;
}

void LossScaling::read_flags(bool wait) {
  for (OptimizerCore& optimizer : accelerator_state_.registry.of<OptimizerCore>()) read_flags(optimizer, wait);
}

// Each call of step() was counted as a step of the job, so skipped steps are subtracted.
void LossScaling::read_flags(OptimizerCore& optimizer, bool wait) {
  optimizer.scaled().read_flags(wait, scaler_.options(), accelerator_state_.place);
  const int64_t skipped = optimizer.scaled().take_skipped();
  if (optimizer.index() == 0) accelerator_state_.steps -= skipped;
}

void LossScaling::run_unless_skipped(const DeferredStep& step) {
  for (OptimizerCore& optimizer : accelerator_state_.registry.of<OptimizerCore>()) {
    const bool is_relevant = step.optimizer == nullptr || step.optimizer == &optimizer.optimizer();
    if (is_relevant && optimizer.scaled().last_was_skipped()) return;
  }
  step.move();
}

void LossScaling::after_step(const torch::optim::Optimizer* optimizer, std::function<void()> move) {
  auto all = accelerator_state_.registry.of<OptimizerCore>();
  const bool known = std::ranges::all_of(all, [](OptimizerCore& one) { return one.scaled().flags_resolved(); });
  if (known && deferred_.empty()) return run_unless_skipped({optimizer, std::move(move)});
  deferred_.push_back({optimizer, std::move(move)});
}

bool LossScaling::was_skipped(OptimizerCore& optimizer) {
  read_flags(optimizer, /*wait=*/true);
  return optimizer.scaled().last_was_skipped();
}

bool LossScaling::any_was_skipped() {
  bool any = false;
  for (OptimizerCore& optimizer : accelerator_state_.registry.of<OptimizerCore>()) any = was_skipped(optimizer) || any;
  return any;
}

gradient::JoinModel LossScaling::join_model(const comm::Group& group) {
  const std::vector<gradient::NamedTensor> state{{"loss scale", scaler_.scale()},
                                                 {"growth tracker", scaler_.growth_tracker()}};
  if (!for_joins_) for_joins_ = std::make_unique<gradient::BufferBroadcast>(group, state);
  return {nullptr, for_joins_.get()};
}

void LossScaling::load_state(const precision::ScalerState& state) {
  for (OptimizerCore& optimizer : accelerator_state_.registry.of<OptimizerCore>()) optimizer.scaled().freeze_scale();
  scaler_.load_state(state);
}

void LossScaling::steps_replaced() {
  forget();
  for (OptimizerCore& optimizer : accelerator_state_.registry.of<OptimizerCore>()) optimizer.scaled().forget_steps();
}

void LossScaling::forget() {
  accelerator_state_.watch.release_all();
  found_inf_.reset();
  due_ = false;
  deferred_.clear();
}

}  // namespace accelerate::prepared
