// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/step_watch.hpp"

#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_set>

#include "accelerate/base/version_counter.hpp"
#include "accelerate/optim/state_stamp.hpp"
#include "accelerate/prepared/accelerator_state.hpp"
#include "accelerate/prepared/loss_scaling.hpp"
#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/optimizer.hpp"

namespace accelerate::prepared {
namespace {

constexpr int64_t kMaxReads = 16;

std::string parameter_name(const at::Tensor& parameter, AcceleratorState& shared) {
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    for (const auto& one : model.parameters()) {
      if (one.tensor.is_same(parameter)) return one.name;
    }
  }
  return fmt::format("of shape [{}]", c10::Join(", ", parameter.sizes()));
}

// With several ranks, the gradient reducers check the windows.
bool watches_window(const AcceleratorState& shared) {
  const AccumulationState& window = shared.window;
  return shared.group.size() == 1 && window.options.steps > 1 && window.scope.is_open() && !window.ends;
}

}  // namespace

// The lists are kept as long as the registry and the optimizers' parameters stay the same.
void StepWatch::find_parameters(AcceleratorState& shared) {
  int64_t parameters = 0;
  for (OptimizerCore& optimizer : shared.registry.of<OptimizerCore>()) parameters += optimizer.parameters_version();
  if (seen_registry_ == shared.registry.version() && seen_parameters_ == parameters) return;
  seen_registry_ = shared.registry.version();
  seen_parameters_ = parameters;
  owners_.clear();
  std::unordered_set<const void*> owned;
  for (const OptimizerCore& optimizer : shared.registry.of<OptimizerCore>()) {
    owners_.push_back({.optimizer = &optimizer});
    for (const at::Tensor& parameter : optimizer.parameters()) {
      owners_.back().parameters.push_back({.parameter = parameter});
      owned.insert(parameter.unsafeGetTensorImpl());
    }
  }
  owners_.emplace_back();
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    for (const auto& [name, parameter] : model.parameters()) {
      const bool is_first = owned.insert(parameter.unsafeGetTensorImpl()).second;
      if (is_first) owners_.back().parameters.push_back({.parameter = parameter});
    }
  }
}

void StepWatch::begin_backward(AcceleratorState& shared) {
  // Preparing an object may write to parameters too.
  if (seen_registry_ == shared.registry.version()) {
    for (Owner& owner : owners_) require_unchanged(owner, shared, "backward");
  }
  release_all();
  if (!shared.scaling && !watches_window(shared)) return;
  find_parameters(shared);
  for (Watched& one : owners_.back().parameters) {
    const at::Tensor& gradient = one.parameter.grad();
    one.gradient = gradient.unsafeGetTensorImpl();
    one.gradient_version = base::version_of(gradient);
  }
}

void StepWatch::backward_done(AcceleratorState& shared) {
  if (!shared.scaling && !watches_window(shared)) return;
  find_parameters(shared);
  auto owner = owners_.begin();
  for (OptimizerCore& optimizer : shared.registry.of<OptimizerCore>()) {
    const bool carries_scale = optimizer.scaled().has_scale() && !optimizer.scaled().unscaled();
    if (!shared.scaling || carries_scale) arm(*owner, shared, /*reached_only=*/false);
    ++owner;
  }
  arm(*owner, shared, /*reached_only=*/true);
  micro_batches_ = shared.window.state().window;
  ++reads_;
}

void StepWatch::arm(Owner& owner, const AcceleratorState& shared, bool reached_only) {
  // A stock optimizer may step on parameters without a prepared one after the job's first step, too.
  const bool may_bypass = !has_stepped_ || owner.optimizer == nullptr;
  const bool reads_device = may_bypass && reads_ < kMaxReads && !shared.capturing;
  owner.armed = true;
  owner.needs_own_step = false;
  owner.witness = nullptr;
  for (Watched& one : owner.parameters) {
    const at::Tensor& gradient = one.parameter.grad();
    one.writes.disarm();
    const bool is_old = reached_only && gradient.unsafeGetTensorImpl() == one.gradient &&
                        base::version_of(gradient) == one.gradient_version;
    if (!gradient.defined() || is_old) continue;
    one.writes.arm(one.parameter, reads_device);
    if (owner.witness == nullptr) owner.witness = &one;
  }
  owner.state_stamp = state_stamp(owner);
}

uint64_t StepWatch::state_stamp(const Owner& owner) {
  if (owner.optimizer == nullptr || owner.witness == nullptr) return 0;
  return optim::state_stamp(owner.optimizer->optimizer(), owner.witness->parameter);
}

void StepWatch::require_unchanged(Owner& owner, AcceleratorState& shared, std::string_view operation) {
  if (!owner.armed || (owner.needs_own_step && state_stamp(owner) == owner.state_stamp)) return;
  const auto found =
      std::ranges::find_if(owner.parameters, [](const Watched& one) { return one.writes.has_changed(one.parameter); });
  if (found == owner.parameters.end()) return;
  release_all();  // the error is thrown once
  refuse(*found, shared, operation);
}

void StepWatch::refuse(const Watched& changed, AcceleratorState& shared, std::string_view operation) {
  const std::string name = parameter_name(changed.parameter, shared);
  if (!shared.scaling) {
    base::fail(ErrorKind::usage, shared.place, operation,
               "parameter {} changed within an accumulation window, while its gradient was the sum over {} of {} "
               "micro-batches: an optimizer stepped that was not prepared, or the one behind a prepared optimizer; "
               "step what prepare() returned, or step where sync_gradients() is true",
               name, micro_batches_, shared.window.options.steps);
  }
  base::fail(ErrorKind::usage, shared.place, operation,
             "parameter {} changed while its gradient carried the loss scale of fp16 ({}): an optimizer stepped that "
             "was not prepared, or the one behind a prepared optimizer; step what prepare() returned. Before the "
             "program itself writes to parameters, zero their gradients with optimizer.zero_grad(), or call "
             "unscale_gradients()",
             name, shared.scaling->scaler().state().scale);
}

void StepWatch::begin_zero_grad(AcceleratorState& shared, const OptimizerCore& optimizer) {
  if (seen_registry_ != shared.registry.version()) return;
  for (Owner& owner : owners_) {
    if (owner.optimizer == &optimizer) require_unchanged(owner, shared, "optimizer.zero_grad");
  }
}

void StepWatch::begin_forward() {
  if (++forwards_ > 1) return;
  for (Owner& owner : owners_) {
    if (!owner.armed) continue;
    for (Watched& one : owner.parameters) one.writes.begin_forward(one.parameter);
  }
}

void StepWatch::forward_done() {
  if (--forwards_ > 0) return;
  for (Owner& owner : owners_) {
    if (!owner.armed) continue;
    for (Watched& one : owner.parameters) one.writes.end_forward(one.parameter);
  }
}

void StepWatch::begin_step(AcceleratorState& shared) {
  if (seen_registry_ != shared.registry.version()) return;
  for (Owner& owner : owners_) {
    if (owner.optimizer != nullptr) require_unchanged(owner, shared, "optimizer.step");
  }
}

void StepWatch::record_step(const OptimizerCore& stepped) {
  has_stepped_ = true;
  release(stepped);
  for (Owner& owner : owners_) owner.needs_own_step = owner.optimizer != nullptr;
}

void StepWatch::release(const OptimizerCore& optimizer) {
  for (Owner& owner : owners_) owner.armed = owner.armed && owner.optimizer != &optimizer;
}

void StepWatch::release_all() {
  for (Owner& owner : owners_) owner.armed = false;
}

void StepWatch::clear() {
  owners_.clear();
  seen_registry_ = seen_parameters_ = -1;
}

}  // namespace accelerate::prepared
