// SPDX-License-Identifier: Apache-2.0
// Detects steps that are errors or probably mistakes: an optimizer of another module, a step without a backward,
// accumulate() at the wrong place.
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "accelerate/base/log.hpp"
#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/optimizer.hpp"

namespace accelerate::prepared {

std::unordered_set<const void*> OptimizerCore::parameters_of_models() const {
  std::unordered_set<const void*> all;
  for (const ModelCore& model : accelerator_state_->registry.of<ModelCore>()) {
    for (const auto& parameter : model.parameters()) all.insert(parameter.tensor.unsafeGetTensorImpl());
  }
  return all;
}

// Called if no parameter has a gradient. The parameters may be those of a copy, or of a module that was replaced.
void OptimizerCore::throw_foreign_parameters() const {
  const size_t models = accelerator_state_->registry.list<ModelCore>().size();
  if (models == 0) return;
  const auto of_models = parameters_of_models();
  for (const at::Tensor& parameter : all_) {
    if (of_models.contains(parameter.unsafeGetTensorImpl())) return;
  }
  base::fail(ErrorKind::usage, accelerator_state_->place, "optimizer.step",
             "none of the optimizer's {} parameters is among the {} of the prepared models ({}), and none has a "
             "gradient: it was made from another module; make it from parameters() of the module that is prepared",
             all_.size(), of_models.size(), models);
}

// Warns if some parameters belong to no prepared model while others have gradients.
void OptimizerCore::warn_about_foreign_parameters() {
  if (std::exchange(warned_foreign_, true)) return;
  const auto of_models = parameters_of_models();
  const auto is_foreign = [&](const at::Tensor& parameter) {
    return parameter.requires_grad() && !parameter.grad().defined() &&
           !of_models.contains(parameter.unsafeGetTensorImpl());
  };
  const auto first = std::ranges::find_if(all_, is_foreign);
  if (of_models.empty() || first == all_.end()) return;
  base::log_once(base::LogLevel::warning, accelerator_state_->place,
                 "optimizer.step: {} of the optimizer's {} parameters belong to no prepared model and have no "
                 "gradient, the first of shape [{}], so they do not change; if they are those of a copy, make the "
                 "optimizer from parameters() of the module that is prepared",
                 std::ranges::count_if(all_, is_foreign), all_.size(), c10::Join(", ", first->sizes()));
}

// Warns about steps that are allowed but probably mistakes.
void OptimizerCore::warn_about_step_inside_window() const {
  if (accelerator_state_->window.awaits_backward()) {
    base::log_once(base::LogLevel::warning, accelerator_state_->place,
                   "optimizer.step: accelerator.backward() did not run in this micro-batch; a plain loss.backward() is "
                   "not divided by gradient_accumulation_steps ({})",
                   accelerator_state_->window.options.steps);
  }
  if (accelerator_state_->window.scope.is_missing(accelerator_state_->window.options.steps)) {
    const int64_t backwards = accelerator_state_->window.scope.backwards_since_step();
    base::log_once(base::LogLevel::warning, accelerator_state_->place,
                   "optimizer.step: gradient_accumulation_steps is {}, but this step follows {} backward{}, and the "
                   "program has opened no accumulate() scope. Open one in the loop's body: auto window = "
                   "accelerator.accumulate(model)",
                   accelerator_state_->window.options.steps, backwards, backwards == 1 ? "" : "s");
  }
  // A stage may have nothing trainable.
  const bool is_of_stage = accelerator_state_->mesh.pipeline.size() > 1 && (all_.empty() || !pipelines_.empty());
  if (has_gradient() || is_of_stage) return;
  throw_foreign_parameters();
  base::log_once(
      base::LogLevel::warning, accelerator_state_->place,
      "optimizer.step: none of the optimizer's {} parameters has a gradient, so nothing changes: no backward "
      "ran since they were zeroed, or the loss reaches another model's",
      all_.size());
}

// Two scopes, or two optimizers that step after their own backwards in one scope, do not cause this warning.
void OptimizerCore::warn_of_second_step() {
  const MicroBatchScope& scope = accelerator_state_->window.scope;
  if (!scope.is_open()) return;
  if (rested_scope_ == scope.number() && scope.backwards() > rested_backwards_) {
    base::log_once(
        base::LogLevel::warning, accelerator_state_->place,
        "optimizer.step: called again in one accumulate() scope, after another backward; a scope is one "
        "micro-batch (gradient_accumulation_steps is {}), in which the optimizer does not step. Open a scope "
        "for each batch, in the loop's body",
        accelerator_state_->window.options.steps);
  }
  rested_scope_ = scope.number();
  rested_backwards_ = scope.backwards();
}

}  // namespace accelerate::prepared
