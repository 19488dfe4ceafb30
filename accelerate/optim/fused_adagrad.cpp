// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_fused_adagrad.h>
#include <ATen/ops/full_like.h>
#include <torch/optim/adagrad.h>

#include "accelerate/optim/fused_steps.hpp"
#include "accelerate/optim/sharded_step.hpp"

namespace accelerate::optim {
namespace {

class AdagradStep final : public CountedStep<torch::optim::AdagradParamState> {
 public:
  explicit AdagradStep(torch::optim::Optimizer& optimizer) : CountedStep(optimizer, "aten::_fused_adagrad_") {}

 private:
  using Options = torch::optim::AdagradOptions;
  using State = torch::optim::AdagradParamState;

  void collect(const StepTarget& stepped) override {
    // The LibTorch optimizer creates the state of its parameters at construction. Parameters that are added later have
    // no state, and its own step() fails for them.
    auto& state = state_of<State>(stepped, [&] {
      auto made = std::make_unique<State>();
      const auto& options = options_of<Options>(stepped.group);
      made->sum(at::full_like(stepped.parameter, options.initial_accumulator_value()));
      return made;
    });
    state.sum(aligned_state(stepped, state.sum()));
    add_counted(stepped, state).first.push_back(state.sum());
  }

  void update(Call& call, const StepScale& scale) override {
    write_step_counts(call);
    const auto& options = options_of<Options>(call.group);
    // LibTorch 2.11's CUDA kernel does not write back all unscaled gradients (fused_adagrad_utils.cuh: not those with a
    // number of elements divisible by four); the other kernels do.
    const bool by_kernel = !scale.scale || call.device.is_cpu();
    const auto gradients = by_kernel ? call.gradients : at::_foreach_div(call.gradients, *scale.scale);
    const auto run = [&](const auto& rate) {
      at::_fused_adagrad_(call.parameters, gradients, call.first, call.steps, rate, options.lr_decay(),
                          options.weight_decay(), options.eps(), /*maximize=*/false,
                          by_kernel ? scale.scale : std::nullopt, scale.skip);
    };
    call.rate.defined() ? run(call.rate) : run(options.lr());
    if (!by_kernel) at::_foreach_copy_(call.gradients, gradients);
  }

  void add_options(CaptureFingerprint& fingerprint, size_t group) override {
    const auto& options = options_of<Options>(group);
    for (const double number : {options.lr_decay(), options.weight_decay(), options.eps()}) fingerprint.add(number);
  }

  void add_state(CaptureFingerprint& fingerprint, torch::optim::OptimizerParamState& state) override {
    fingerprint.add(static_cast<State&>(state).sum());
  }
};

}  // namespace

std::unique_ptr<FusedStep> fused_adagrad(torch::optim::Optimizer& optimizer) {
  return std::make_unique<AdagradStep>(optimizer);
}

}  // namespace accelerate::optim
