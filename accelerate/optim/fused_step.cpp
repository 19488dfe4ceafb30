// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/fused_step.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/TensorOptions.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <tuple>
#include <typeinfo>

#include "accelerate/optim/kernel_calls.hpp"

namespace accelerate::optim {
namespace {

using torch::optim::Optimizer;

// CPU and CUDA have the three kernels, and so have some of LibTorch's other devices: whoever has one has all.
bool has_kernels(const at::Tensor& parameter) {
  if (parameter.is_cpu() || parameter.is_cuda()) return true;
  static const auto sgd = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_fused_sgd_", "");
  const auto key = c10::computeDispatchKey(std::nullopt, parameter.layout(), parameter.device());
  return sgd.hasKernelForDispatchKey(key) || c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(key);
}

// The kernels walk the memory of a parameter and its companions side by side: all must lie alike and without gaps.
bool lies_like(const at::Tensor& companion, const at::Tensor& parameter) {
  return companion.strides() == parameter.strides() || (companion.is_contiguous() && parameter.is_contiguous());
}

bool kernels_know(const at::Tensor& parameter, const at::Tensor& gradient) {
  return gradient.layout() == at::kStrided && parameter.layout() == at::kStrided && parameter.is_floating_point() &&
         gradient.scalar_type() == parameter.scalar_type() && gradient.device() == parameter.device() &&
         has_kernels(parameter) && parameter.is_non_overlapping_and_dense() && lies_like(gradient, parameter);
}

// A part of the state for the kernels: made on the first step, and laid out anew where it was made or loaded with other
// strides or on another device.
at::Tensor lay_like(const at::Tensor& parameter, const at::Tensor& state) {
  if (!state.defined()) return at::zeros_like(parameter);
  const bool fits = state.device() == parameter.device() && lies_like(state, parameter);
  return fits ? state : at::empty_like(parameter).copy_(state);
}

bool all_known(Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      const at::Tensor& gradient = parameter.grad();
      if (gradient.defined() && !kernels_know(parameter, gradient)) return false;
    }
  }
  return true;
}

template <typename State>
State& state_of(Optimizer& optimizer, const at::Tensor& parameter) {
  auto& slot = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (!slot) slot = std::make_unique<State>();
  return static_cast<State&>(*slot);
}

// Adam and AdamW: the same state, two kernels.
template <typename Options, typename State, typename Kernel>
class AdamStep final : public FusedStep {
 public:
  AdamStep(Optimizer& optimizer, Kernel kernel) : optimizer_(optimizer), kernel_(kernel) {}

  bool step(const StepScale& scale) override {
    if (!all_known(optimizer_)) return false;
    const at::NoGradGuard no_grad;
    const ClearedAtEnd cleared{calls_};
    for (auto& group : optimizer_.param_groups()) {
      const auto& options = static_cast<const Options&>(group.options());
      for (const auto& parameter : group.params()) {
        if (parameter.grad().defined()) collect(parameter, options.amsgrad());
      }
      calls_.run([&](Call& call) {
        fill_steps(call);
        cancelled_.correct(call);
        kernel_(call, options, scale);
        count(call, scale);
      });
    }
    return true;
  }
  void settle() override { cancelled_.settle<State>(); }

 private:
  // Only now, so that a kernel that throws has counted nothing.
  void count(const Call& call, const StepScale& scale) {
    if (call.device.is_cpu() && is_set(scale.skip)) return;
    for (auto* state : call.states) static_cast<State&>(*state).step(call.step);
    if (scale.skip && !call.device.is_cpu()) cancelled_.note(call, *scale.skip);
  }
  void collect(const at::Tensor& parameter, bool amsgrad) {
    auto& state = state_of<State>(optimizer_, parameter);
    state.exp_avg(lay_like(parameter, state.exp_avg()));
    state.exp_avg_sq(lay_like(parameter, state.exp_avg_sq()));
    if (amsgrad) state.max_exp_avg_sq(lay_like(parameter, state.max_exp_avg_sq()));
    Call& call = calls_.of(parameter, state.step() + 1);
    call.states.push_back(&state);
    call.parameters.push_back(parameter);
    call.gradients.push_back(parameter.grad());
    call.first.push_back(state.exp_avg());
    call.second.push_back(state.exp_avg_sq());
    if (amsgrad) call.maxima.push_back(state.max_exp_avg_sq());
  }

  Optimizer& optimizer_;
  Kernel kernel_;
  Calls calls_;
  Cancelled cancelled_;
};

class SgdStep final : public FusedStep {
 public:
  explicit SgdStep(Optimizer& optimizer) : optimizer_(optimizer) {}

  bool step(const StepScale& scale) override {
    if (!all_known(optimizer_)) return false;
    const at::NoGradGuard no_grad;
    const ClearedAtEnd cleared{calls_};
    for (auto& group : optimizer_.param_groups()) {
      const auto& options = static_cast<const torch::optim::SGDOptions&>(group.options());
      for (const auto& parameter : group.params()) {
        if (parameter.grad().defined()) collect(parameter, options.momentum() != 0);
      }
      calls_.run([&](Call& call) {
        at::_fused_sgd_(call.parameters, call.gradients, call.first, options.weight_decay(), options.momentum(),
                        options.lr(), options.dampening(), options.nesterov(), /*maximize=*/false,
                        /*is_first_step=*/call.step == first_step, scale.scale, scale.skip);
        keep_momentum(call, scale);
      });
    }
    return true;
  }

 private:
  static constexpr int64_t first_step = 1, later_step = 2;  // all that SGD needs to know of the count

  void collect(const at::Tensor& parameter, bool momentum) {
    if (!momentum) {
      add(calls_.of(parameter, later_step), parameter);
      return;
    }
    auto& state = state_of<torch::optim::SGDParamState>(optimizer_, parameter);
    const bool first = !state.momentum_buffer().defined();
    Call& call = calls_.of(parameter, first ? first_step : later_step);
    add(call, parameter);
    call.first.push_back(lay_like(parameter, state.momentum_buffer()));
    call.states.push_back(&state);
  }
  // Only now: the buffer of a first step that was not made must not count as one. (A flag on a device is not looked at:
  // there a cancelled first step leaves zeros, as in PyTorch, which with dampening differ from none.)
  static void keep_momentum(const Call& call, const StepScale& scale) {
    if (call.device.is_cpu() && is_set(scale.skip)) return;
    for (size_t i = 0; i < call.states.size(); ++i) {
      static_cast<torch::optim::SGDParamState&>(*call.states[i]).momentum_buffer(call.first[i]);
    }
  }
  static void add(Call& call, const at::Tensor& parameter) {
    call.parameters.push_back(parameter);
    call.gradients.push_back(parameter.grad());
  }

  Optimizer& optimizer_;
  Calls calls_;
};

template <typename Options, typename State, typename Kernel>
std::unique_ptr<FusedStep> make_adam(Optimizer& optimizer, Kernel kernel) {
  return std::make_unique<AdamStep<Options, State, Kernel>>(optimizer, kernel);
}

}  // namespace

std::unique_ptr<FusedStep> FusedStep::recognise(Optimizer& optimizer) {
  using namespace torch::optim;
  if (typeid(optimizer) == typeid(SGD)) return std::make_unique<SgdStep>(optimizer);
  if (typeid(optimizer) == typeid(Adam)) {
    return make_adam<AdamOptions, AdamParamState>(
        optimizer, [](Call& call, const AdamOptions& options, const StepScale& scale) {
          const auto [beta1, beta2] = options.betas();
          at::_fused_adam_(call.parameters, call.gradients, call.first, call.second, call.maxima, call.steps,
                           options.lr(), beta1, beta2, options.weight_decay(), options.eps(), options.amsgrad(),
                           /*maximize=*/false, scale.scale, scale.skip);
        });
  }
  if (typeid(optimizer) == typeid(AdamW)) {
    return make_adam<AdamWOptions, AdamWParamState>(
        optimizer, [](Call& call, const AdamWOptions& options, const StepScale& scale) {
          const auto [beta1, beta2] = options.betas();
          at::_fused_adamw_(call.parameters, call.gradients, call.first, call.second, call.maxima, call.steps,
                            options.lr(), beta1, beta2, options.weight_decay(), options.eps(), options.amsgrad(),
                            /*maximize=*/false, scale.scale, scale.skip);
        });
  }
  return nullptr;
}

}  // namespace accelerate::optim
