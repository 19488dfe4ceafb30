// SPDX-License-Identifier: Apache-2.0
// LibTorch has no fused kernel for RMSprop: the loop below runs on the CPU, foreach operators run on other devices.
#include <torch/optim/rmsprop.h>

#include "accelerate/optim/fused_steps.hpp"
#include "accelerate/optim/rmsprop_kernels.hpp"
#include "accelerate/optim/sharded_step.hpp"

namespace accelerate::optim {
namespace {

class RMSpropStep final : public CountedStep<torch::optim::RMSpropParamState> {
 public:
  explicit RMSpropStep(torch::optim::Optimizer& optimizer) : CountedStep(optimizer, nullptr) {}

 private:
  using Options = torch::optim::RMSpropOptions;
  using State = torch::optim::RMSpropParamState;

  void collect(const StepTarget& stepped) override {
    const auto& options = options_of<Options>(stepped.group);
    auto& state = state_of<State>(stepped);
    state.square_avg(aligned_state(stepped, state.square_avg()));
    if (options.momentum() > 0) state.momentum_buffer(aligned_state(stepped, state.momentum_buffer()));
    if (options.centered()) state.grad_avg(aligned_state(stepped, state.grad_avg()));
    Call& call = add_counted(stepped, state);
    call.first.push_back(state.square_avg());
    if (options.momentum() > 0) call.second.push_back(state.momentum_buffer());
    if (options.centered()) call.maxima.push_back(state.grad_avg());
  }

  void update(Call& call, const StepScale& scale) override {
    const auto& options = options_of<Options>(call.group);
    const RMSpropNumbers numbers{.lr = options.lr(),
                                 .alpha = options.alpha(),
                                 .eps = options.eps(),
                                 .weight_decay = options.weight_decay(),
                                 .momentum = options.momentum(),
                                 .centered = options.centered()};
    const RMSpropLists lists{call.parameters, call.gradients, call.first, call.second, call.maxima};
    call.device.is_cpu() ? rmsprop_on_cpu(lists, numbers, scale) : rmsprop_on_device(lists, numbers, scale, call.rate);
  }

  void add_options(CaptureFingerprint& fingerprint, size_t group) override {
    const auto& options = options_of<Options>(group);
    for (const double number :
         {options.alpha(), options.eps(), options.weight_decay(), options.momentum(), options.centered() ? 1.0 : 0.0}) {
      fingerprint.add(number);
    }
  }

  void add_state(CaptureFingerprint& fingerprint, torch::optim::OptimizerParamState& state) override {
    const auto& averages = static_cast<State&>(state);
    for (const auto& one : {averages.square_avg(), averages.momentum_buffer(), averages.grad_avg()})
      fingerprint.add(one);
  }
};

}  // namespace

std::unique_ptr<FusedStep> fused_rmsprop(torch::optim::Optimizer& optimizer) {
  return std::make_unique<RMSpropStep>(optimizer);
}

}  // namespace accelerate::optim
