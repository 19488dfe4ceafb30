// SPDX-License-Identifier: Apache-2.0
#include "accelerate/pipeline/stage.hpp"

#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace accelerate::pipeline {
namespace {

/// The identity without a copy. Its result is no leaf, so that a first layer may modify its input in place, as in one
/// process.
struct StageInput : torch::autograd::Function<StageInput> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& leaf) { return leaf.detach(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return gradients;
  }
};

}  // namespace

void Stage::forward(int64_t micro_batch, const at::Tensor& input, bool needs_gradient, const Finish& finish) {
  Live live;
  at::Tensor stage_input = input;
  if (needs_gradient) {
    live.input = input.detach().set_requires_grad(true);
    stage_input = StageInput::apply(live.input);
  }
  const precision::Autocast region(autocast_);
  live.root = layers_->forward(stage_input);
  if (finish) live.root = finish(live.root);
  live_[micro_batch] = std::move(live);
}

void Stage::backward(int64_t micro_batch, const at::Tensor& gradient) {
  Live& live = live_.at(micro_batch);
  const at::Tensor root = std::move(live.root);  // its graph is released with it
  if (!root.requires_grad()) return;
  // Backward runs with the dtypes of the forward, as PyTorch recommends.
  const precision::Autocast off(precision::AutocastRegion{.device = root.device().type(), .enabled = false});
  torch::autograd::backward({root}, {gradient});
}

at::Tensor Stage::take_input_gradient(int64_t micro_batch) {
  Live& live = live_.at(micro_batch);
  if (!live.input.defined()) return {};
  at::Tensor gradient = live.input.grad();
  if (!gradient.defined()) gradient = at::zeros_like(live.input.detach());
  live.input.reset();
  return gradient;
}

bool Stage::is_trainable() const {
  const auto parameters = layers_->parameters();
  return std::any_of(parameters.begin(), parameters.end(), [](const auto& each) { return each.requires_grad(); });
}

void Stage::to(at::Device device) {
  layers_->to(device);
  device_ = device;
}

std::optional<at::Device> Stage::device() const {
  if (device_) return device_;
  for (const auto& parameter : layers_->parameters()) return parameter.device();
  for (const auto& buffer : layers_->buffers()) return buffer.device();
  return std::nullopt;
}

}  // namespace accelerate::pipeline
