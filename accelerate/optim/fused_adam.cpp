// SPDX-License-Identifier: Apache-2.0
// Adam and AdamW share their state; each has its own kernel.
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include "accelerate/optim/fused_steps.hpp"
#include "accelerate/optim/sharded_step.hpp"

namespace accelerate::optim {
namespace {

template <typename Options, typename State, typename Kernel>
class AdamStep final : public CountedStep<State> {
  using Base = CountedStep<State>;

 public:
  AdamStep(torch::optim::Optimizer& optimizer, const char* schema, Kernel kernel)
      : Base(optimizer, schema), kernel_(kernel) {}

 private:
  void collect(const ShardedStep::StepTarget& stepped) override {
    const bool amsgrad = this->template options_of<Options>(stepped.group).amsgrad();
    auto& state = this->template state_of<State>(stepped);
    state.exp_avg(this->aligned_state(stepped, state.exp_avg()));
    state.exp_avg_sq(this->aligned_state(stepped, state.exp_avg_sq()));
    if (amsgrad) state.max_exp_avg_sq(this->aligned_state(stepped, state.max_exp_avg_sq()));
    Call& call = this->add_counted(stepped, state);
    call.first.push_back(state.exp_avg());
    call.second.push_back(state.exp_avg_sq());
    if (amsgrad) call.maxima.push_back(state.max_exp_avg_sq());
  }

  void update(Call& call, const StepScale& scale) override {
    this->write_step_counts(call);
    const auto& options = this->template options_of<Options>(call.group);
    const auto [beta1, beta2] = options.betas();
    const auto run = [&, beta1 = beta1, beta2 = beta2](const auto& rate) {
      kernel_(call.parameters, call.gradients, call.first, call.second, call.maxima, call.steps, rate, beta1, beta2,
              options.weight_decay(), options.eps(), options.amsgrad(), /*maximize=*/false, scale.scale, scale.skip);
    };
    call.rate.defined() ? run(call.rate) : run(options.lr());
  }

  void add_options(CaptureFingerprint& fingerprint, size_t group) override {
    const auto& options = this->template options_of<Options>(group);
    const auto [beta1, beta2] = options.betas();
    for (const double number : {beta1, beta2, options.weight_decay(), options.eps(), options.amsgrad() ? 1.0 : 0.0}) {
      fingerprint.add(number);
    }
  }

  void add_state(CaptureFingerprint& fingerprint, torch::optim::OptimizerParamState& state) override {
    const auto& averages = static_cast<State&>(state);
    for (const auto& one : {averages.exp_avg(), averages.exp_avg_sq(), averages.max_exp_avg_sq()}) fingerprint.add(one);
  }

  Kernel kernel_;
};

template <typename Options, typename State, typename Kernel>
std::unique_ptr<FusedStep> make_adam(torch::optim::Optimizer& optimizer, const char* schema, Kernel kernel) {
  return std::make_unique<AdamStep<Options, State, Kernel>>(optimizer, schema, kernel);
}

}  // namespace

std::unique_ptr<FusedStep> fused_adam(torch::optim::Optimizer& optimizer) {
  return make_adam<torch::optim::AdamOptions, torch::optim::AdamParamState>(
      optimizer, "aten::_fused_adam_", [](const auto&... arguments) { at::_fused_adam_(arguments...); });
}

std::unique_ptr<FusedStep> fused_adamw(torch::optim::Optimizer& optimizer) {
  return make_adam<torch::optim::AdamWOptions, torch::optim::AdamWParamState>(
      optimizer, "aten::_fused_adamw_", [](const auto&... arguments) { at::_fused_adamw_(arguments...); });
}

}  // namespace accelerate::optim
