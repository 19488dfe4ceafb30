// SPDX-License-Identifier: Apache-2.0
#include "accelerate/pipeline/layer_costs.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "accelerate/base/error.hpp"
#include "accelerate/device/seed.hpp"

namespace accelerate::pipeline {
namespace {

void wait_for(at::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

/// Restores the state that a forward changes beside its output.
class KeptState {
 public:
  explicit KeptState(const std::vector<at::Tensor>& buffers)
      : buffers_(buffers), generator_(device::rng_state(at::kCPU)) {
    for (const auto& buffer : buffers_) values_.push_back(buffer.clone());
  }
  KeptState(const KeptState&) = delete;
  KeptState& operator=(const KeptState&) = delete;
  ~KeptState() {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < buffers_.size(); ++i) buffers_[i].copy_(values_[i]);
    device::set_rng_state(at::kCPU, generator_);
  }

 private:
  std::vector<at::Tensor> buffers_, values_;
  at::Tensor generator_;
};

/// Gradients are returned instead of accumulated, so that parameters do not change.
void run_backward(const at::Tensor& output, const at::Tensor& input, const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> leaves;
  if (input.requires_grad()) leaves.push_back(input);
  for (const auto& parameter : parameters) {
    if (parameter.requires_grad()) leaves.push_back(parameter);
  }
  if (!output.requires_grad() || leaves.empty()) return;
  torch::autograd::grad({output.sum()}, leaves, {}, /*retain_graph=*/std::nullopt, /*create_graph=*/false,
                        /*allow_unused=*/true);
}

}  // namespace

std::vector<double> parameter_costs(const Layers& layers) {
  std::vector<double> costs;
  for (const auto& layer : *layers.sequential()) {
    double elements = 1;
    for (const auto& parameter : layer.ptr()->parameters()) elements += static_cast<double>(parameter.numel());
    costs.push_back(elements);
  }
  return costs;
}

std::vector<double> measured_costs(const Layers& layers, const at::Tensor& input, int64_t repeats) {
  if (repeats < 1) base::fail(ErrorKind::usage, {}, "measured_costs", "repeats is {}, must be at least 1", repeats);
  using Clock = std::chrono::steady_clock;
  torch::nn::Sequential sequential = layers.sequential();
  const KeptState kept(sequential->buffers());
  const at::AutoGradMode with_gradients(true);
  std::vector<double> costs;
  at::Tensor layer_input = input.detach();
  for (auto& layer : *sequential) {
    const auto parameters = layer.ptr()->parameters();
    double shortest = std::numeric_limits<double>::infinity();
    at::Tensor output;
    for (int64_t i = 0; i < repeats; ++i) {
      at::Tensor leaf = layer_input.detach().clone();
      if (leaf.is_floating_point()) leaf.set_requires_grad(true);
      const at::Tensor given = leaf.requires_grad() ? leaf.view_as(leaf) * 1 : leaf;  // may be modified in place
      wait_for(leaf.device());
      const auto begin = Clock::now();
      output = layer.any_forward(at::Tensor(given)).get<at::Tensor>();
      run_backward(output, leaf, parameters);
      wait_for(leaf.device());
      shortest = std::min(shortest, std::chrono::duration<double>(Clock::now() - begin).count());
    }
    costs.push_back(shortest);
    layer_input = output.detach();
  }
  return costs;
}

}  // namespace accelerate::pipeline
