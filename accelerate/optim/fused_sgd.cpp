// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/_fused_sgd.h>
#include <torch/optim/sgd.h>

#include "accelerate/optim/fused_steps.hpp"
#include "accelerate/optim/sharded_step.hpp"

namespace accelerate::optim {
namespace {

class SgdStep final : public ShardedStep {
 public:
  explicit SgdStep(torch::optim::Optimizer& optimizer) : ShardedStep(optimizer, "aten::_fused_sgd_") {}

 private:
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;
  static constexpr int64_t kFirstStep = 1, later_step = 2;  // SGD only distinguishes these two steps

  void collect(const StepTarget& stepped) override {
    if (options_of<Options>(stepped.group).momentum() == 0) {
      add(stepped, later_step);
      return;
    }
    const auto found = optimizer_.state().find(stepped.param_shard.key);
    at::Tensor buffer;
    if (found != optimizer_.state().end()) buffer = static_cast<State&>(*found->second).momentum_buffer();
    const bool first = !buffer.defined();
    if (first && capturing()) throw_capture_before_first_step(stepped);
    Call& call = add(stepped, first ? kFirstStep : later_step);
    call.first.push_back(aligned_state(stepped, buffer));
    call.keys.push_back(stepped.param_shard.key);
  }

  void update(Call& call, const StepScale& scale) override {
    const auto& options = options_of<Options>(call.group);
    const auto run = [&](const auto& rate) {
      at::_fused_sgd_(call.parameters, call.gradients, call.first, options.weight_decay(), options.momentum(), rate,
                      options.dampening(), options.nesterov(), /*maximize=*/false,
                      /*is_first_step=*/call.step == kFirstStep, scale.scale, scale.skip);
    };
    call.rate.defined() ? run(call.rate) : run(options.lr());
  }

  void add_options(CaptureFingerprint& fingerprint, size_t group) override {
    const auto& options = options_of<Options>(group);
    for (const double number :
         {options.weight_decay(), options.momentum(), options.dampening(), options.nesterov() ? 1.0 : 0.0}) {
      fingerprint.add(number);
    }
  }

  void add_state(CaptureFingerprint& fingerprint, torch::optim::OptimizerParamState& state) override {
    fingerprint.add(static_cast<State&>(state).momentum_buffer());
  }

  // The kernel does not use counts.
  int64_t add_to_counts(std::span<torch::optim::OptimizerParamState* const>, int64_t) override { return 0; }

  // Stores the buffers only after the step: the buffer of a skipped first step must not count as one, and a LibTorch
  // step fails for a state without a buffer. A skip flag on a device is not read. A skipped first step then leaves
  // zeros, as in PyTorch; with dampening, zeros differ from a missing buffer.
  void keep(const Call& call, const StepScale&) override {
    for (size_t i = 0; i < call.keys.size(); ++i) {
      auto& state = optimizer_.state()[call.keys[i]];
      if (!state) state = std::make_unique<State>();
      static_cast<State&>(*state).momentum_buffer(call.first[i]);
    }
  }
};

}  // namespace

std::unique_ptr<FusedStep> fused_sgd(torch::optim::Optimizer& optimizer) {
  return std::make_unique<SgdStep>(optimizer);
}

}  // namespace accelerate::optim
