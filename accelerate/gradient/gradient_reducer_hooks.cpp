// SPDX-License-Identifier: Apache-2.0
// Hooks a reducer to the gradient accumulators of its parameters.
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <utility>

#include "accelerate/gradient/gradient_reducer_core.hpp"

namespace accelerate::gradient {
namespace {

struct ArrivalHook : torch::autograd::FunctionPostHook {
  ArrivalHook(std::weak_ptr<GradientReducer::Core> the_core, size_t the_index)
      : core(std::move(the_core)), index(the_index) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    if (const auto alive = core.lock()) alive->arrived(index);
    return outputs;
  }

  std::weak_ptr<GradientReducer::Core> core;
  size_t index;
};

bool is_managed_by_other_reducer(const std::vector<std::unique_ptr<torch::autograd::FunctionPostHook>>& hooks) {
  return std::any_of(hooks.begin(), hooks.end(), [](const auto& hook) {
    const auto* arrival = dynamic_cast<const ArrivalHook*>(hook.get());
    return arrival != nullptr && !arrival->core.expired();
  });
}

}  // namespace

void GradientReducer::Core::register_hooks() {
  std::vector<Accumulator> accumulators;
  for (const ParameterState& state : states) {
    accumulators.push_back(torch::autograd::impl::grad_accumulator(state.parameter));
    if (!accumulators.back() || !is_managed_by_other_reducer(accumulators.back()->post_hooks())) continue;
    base::fail(
        ErrorKind::usage, group.place(), "prepare",
        "the gradient of parameter {} is averaged already, through another Accelerator or "
        "DistributedDataParallel that prepared its module; use that one, or end it first (free_memory(), or drop "
        "its prepared model)",
        state.name);
  }
  // A tensor has only a weak reference to its accumulator. This reference keeps the accumulator and its hook alive.
  accumulators_ = std::move(accumulators);
  for (size_t i = 0; i < states.size(); ++i) {
    const bool frozen = accumulators_[i] == nullptr;
    hook_keys_.push_back(frozen ? 0
                                : accumulators_[i]->add_post_hook(std::make_unique<ArrivalHook>(weak_from_this(), i)));
  }
}

void GradientReducer::Core::remove_hooks() {
  for (size_t i = 0; i < accumulators_.size(); ++i) {
    if (accumulators_[i]) accumulators_[i]->del_post_hook(hook_keys_[i]);
  }
  accumulators_.clear();
  hook_keys_.clear();
}

// Tensor::set_data(), called by module->to(), drops the accumulator if dtype or device change.
bool GradientReducer::Core::parameters_moved() const {
  for (size_t i = 0; i < accumulators_.size(); ++i) {
    const at::Tensor& parameter = states[i].parameter;
    if (torch::autograd::impl::try_get_grad_accumulator(parameter) != accumulators_[i]) return true;
    if (!accumulators_[i] && parameter.requires_grad()) return true;
  }
  return false;
}

void GradientReducer::Core::follow_parameters() {
  if (!parameters_moved()) return;
  complete();
  remove_hooks();
  register_hooks();
  forget_layout();
}

}  // namespace accelerate::gradient
