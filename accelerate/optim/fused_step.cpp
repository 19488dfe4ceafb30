// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/fused_step.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <deque>
#include <tuple>
#include <typeinfo>
#include <vector>

namespace accelerate::optim {
namespace {

using torch::optim::Optimizer;

// The kernels walk the memory of a parameter and its companions side by side: all must lie alike and without gaps.
bool lies_like(const at::Tensor& companion, const at::Tensor& parameter) {
  return companion.strides() == parameter.strides() || (companion.is_contiguous() && parameter.is_contiguous());
}

bool kernels_know(const at::Tensor& parameter, const at::Tensor& gradient) {
  return gradient.layout() == at::kStrided && parameter.layout() == at::kStrided && parameter.is_floating_point() &&
         gradient.scalar_type() == parameter.scalar_type() && gradient.device() == parameter.device() &&
         (parameter.device().is_cpu() || parameter.device().is_cuda()) && parameter.is_non_overlapping_and_dense() &&
         lies_like(gradient, parameter);
}

// A part of the state for the kernels: made on the first step, and laid out anew where it was loaded with other
// strides.
at::Tensor lay_like(const at::Tensor& parameter, const at::Tensor& state) {
  if (!state.defined()) return at::zeros_like(parameter);
  return lies_like(state, parameter) ? state : at::empty_like(parameter).copy_(state);
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

// What one kernel call takes: parameters of one dtype, device and count of steps. Lists keep their capacity from step
// to step, so that a steady step allocates nothing here.
struct Call {
  at::ScalarType dtype;
  at::Device device;
  int64_t step;
  std::vector<at::Tensor> parameters{}, gradients{}, first{}, second{}, maxima{}, steps{};
  at::Tensor step_tensor{};

  bool takes(const at::Tensor& parameter, int64_t count) const {
    return count == step && parameter.scalar_type() == dtype && parameter.device() == device;
  }
  void clear() {
    for (auto* list : {&parameters, &gradients, &first, &second, &maxima, &steps}) list->clear();
  }
};

class Calls {
 public:
  Call& of(const at::Tensor& parameter, int64_t step) {
    for (size_t i = 0; i < used_; ++i) {
      if (calls_[i].takes(parameter, step)) return calls_[i];
    }
    if (used_ == calls_.size()) calls_.push_back({parameter.scalar_type(), parameter.device(), step});
    Call& call = calls_[used_++];
    if (call.dtype != parameter.scalar_type() || call.device != parameter.device()) call.step_tensor.reset();
    call.dtype = parameter.scalar_type();
    call.device = parameter.device();
    call.step = step;
    return call;
  }
  template <typename Run>
  void run(const Run& kernel) {
    for (size_t i = 0; i < used_; ++i) {
      kernel(calls_[i]);
      calls_[i].clear();  // gradients must not live on in our lists
    }
    used_ = 0;
  }

 private:
  std::deque<Call> calls_;  // references into it stay valid
  size_t used_ = 0;
};

// The kernels read the count of steps from one float per parameter; a shared one does, they only read.
void fill_steps(Call& call) {
  if (!call.step_tensor.defined()) call.step_tensor = at::empty({}, at::TensorOptions(call.device).dtype(at::kFloat));
  if (call.device.is_cpu()) {
    *call.step_tensor.data_ptr<float>() = static_cast<float>(call.step);
  } else {
    call.step_tensor.fill_(static_cast<double>(call.step));
  }
  call.steps.assign(call.parameters.size(), call.step_tensor);
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

  bool step() override {
    if (!all_known(optimizer_)) return false;
    const at::NoGradGuard no_grad;
    for (auto& group : optimizer_.param_groups()) {
      const auto& options = static_cast<const Options&>(group.options());
      for (const auto& parameter : group.params()) {
        if (parameter.grad().defined()) collect(parameter, options.amsgrad());
      }
      calls_.run([&](Call& call) {
        fill_steps(call);
        kernel_(call, options);
      });
    }
    return true;
  }

 private:
  void collect(const at::Tensor& parameter, bool amsgrad) {
    auto& state = state_of<State>(optimizer_, parameter);
    state.exp_avg(lay_like(parameter, state.exp_avg()));
    state.exp_avg_sq(lay_like(parameter, state.exp_avg_sq()));
    if (amsgrad) state.max_exp_avg_sq(lay_like(parameter, state.max_exp_avg_sq()));
    state.step(state.step() + 1);
    Call& call = calls_.of(parameter, state.step());
    call.parameters.push_back(parameter);
    call.gradients.push_back(parameter.grad());
    call.first.push_back(state.exp_avg());
    call.second.push_back(state.exp_avg_sq());
    if (amsgrad) call.maxima.push_back(state.max_exp_avg_sq());
  }

  Optimizer& optimizer_;
  Kernel kernel_;
  Calls calls_;
};

class SgdStep final : public FusedStep {
 public:
  explicit SgdStep(Optimizer& optimizer) : optimizer_(optimizer) {}

  bool step() override {
    if (!all_known(optimizer_)) return false;
    const at::NoGradGuard no_grad;
    for (auto& group : optimizer_.param_groups()) {
      const auto& options = static_cast<const torch::optim::SGDOptions&>(group.options());
      for (const auto& parameter : group.params()) {
        if (parameter.grad().defined()) collect(parameter, options.momentum() != 0);
      }
      calls_.run([&](Call& call) {
        at::_fused_sgd_(call.parameters, call.gradients, call.first, options.weight_decay(), options.momentum(),
                        options.lr(), options.dampening(), options.nesterov(), /*maximize=*/false,
                        /*is_first_step=*/call.step == first_step);
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
    state.momentum_buffer(lay_like(parameter, state.momentum_buffer()));
    Call& call = calls_.of(parameter, first ? first_step : later_step);
    add(call, parameter);
    call.first.push_back(state.momentum_buffer());
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
    return make_adam<AdamOptions, AdamParamState>(optimizer, [](Call& call, const AdamOptions& options) {
      const auto [beta1, beta2] = options.betas();
      at::_fused_adam_(call.parameters, call.gradients, call.first, call.second, call.maxima, call.steps, options.lr(),
                       beta1, beta2, options.weight_decay(), options.eps(), options.amsgrad(), /*maximize=*/false);
    });
  }
  if (typeid(optimizer) == typeid(AdamW)) {
    return make_adam<AdamWOptions, AdamWParamState>(optimizer, [](Call& call, const AdamWOptions& options) {
      const auto [beta1, beta2] = options.betas();
      at::_fused_adamw_(call.parameters, call.gradients, call.first, call.second, call.maxima, call.steps, options.lr(),
                        beta1, beta2, options.weight_decay(), options.eps(), options.amsgrad(), /*maximize=*/false);
    });
  }
  return nullptr;
}

}  // namespace accelerate::optim
