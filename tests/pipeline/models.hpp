// SPDX-License-Identifier: Apache-2.0
// Models of layers for tests of pipelines, in float64 and the same on every rank.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "accelerate/nn/activation_checkpoint.hpp"
#include "accelerate/pipeline/pipeline.hpp"
#include "tests/sharding/models.hpp"

namespace pipeline_testing {

using accelerate::PipelineOptions;
using accelerate::PipelineSchedule;
using accelerate::comm::Group;
using accelerate::nn::Pipeline;
using sharding_testing::largest_difference;
using sharding_testing::waves;
using torch::nn::Sequential;

/// A layer without parameters of its own, called through a function.
struct CallImpl : torch::nn::Module {
  explicit CallImpl(std::function<torch::Tensor(torch::Tensor)> call) : run(std::move(call)) {}
  torch::Tensor forward(torch::Tensor x) { return run(std::move(x)); }
  std::function<torch::Tensor(torch::Tensor)> run;
};
TORCH_MODULE(Call);

/// The output layer that uses another layer's weight.
struct TiedHeadImpl : torch::nn::Module {
  explicit TiedHeadImpl(const torch::Tensor& shared) : weight(register_parameter("weight", shared)) {}
  torch::Tensor forward(const torch::Tensor& x) { return at::linear(x, weight); }
  torch::Tensor weight;
};
TORCH_MODULE(TiedHead);

/// A block that computes its activations again in backward.
struct CheckpointedImpl : torch::nn::Module {
  explicit CheckpointedImpl(int64_t width) : inner(register_module("inner", torch::nn::Linear(width, width))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return accelerate::nn::checkpoint([this](const at::Tensor& in) { return torch::tanh(inner(in)); }, x);
  }
  torch::nn::Linear inner;
};
TORCH_MODULE(Checkpointed);

inline Sequential filled(Sequential layers) {
  layers->to(torch::kDouble);
  sharding_testing::fill(*layers);
  return layers;
}

/// Nine layers, so that 4 ranks can have 2 stages each. The first layer of a stage may be the ReLU in place.
inline Sequential mlp() {
  using namespace torch::nn;
  using torch::nn::Linear;  // not accelerate::nn::Linear, which other tests use
  return filled(Sequential(Linear(7, 9), Tanh(), Linear(9, 8), ReLU(ReLUOptions().inplace(true)), Linear(8, 8), Tanh(),
                           Checkpointed(8), Linear(8, 6), Linear(6, 3)));
}

inline Sequential conv_net() {
  using namespace torch::nn;
  using torch::nn::Linear;  // not accelerate::nn::Linear, which other tests use
  return filled(Sequential(Conv2d(2, 6, 3), GroupNorm(2, 6), ReLU(), Conv2d(6, 4, 3), Flatten(), Linear(4 * 4, 3)));
}

inline Sequential tied_transformer() {
  torch::nn::Embedding tokens(10, 6);
  return filled(Sequential(tokens, sharding_testing::Block(6), sharding_testing::Block(6), TiedHead(tokens->weight)));
}

/// Parameters, each once.
inline std::vector<torch::Tensor> parameters_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> unique;
  for (const auto& parameter : module.parameters()) {
    const auto same = [&](const torch::Tensor& other) { return other.is_same(parameter); };
    if (std::none_of(unique.begin(), unique.end(), same)) unique.push_back(parameter);
  }
  return unique;
}

/// Largest difference between this rank's parameters and buffers and those of the same names in the whole model.
inline double difference(const Pipeline& pipeline, const Sequential& whole) {
  double largest = 0;
  const auto parameters = whole->named_parameters();
  for (const auto& item : pipeline.named_parameters()) {
    largest = std::max(largest, largest_difference({item.value()}, {parameters[item.key()]}));
  }
  const auto buffers = whole->named_buffers();
  for (const auto& item : pipeline.named_buffers()) {
    largest = std::max(largest,
                       largest_difference({item.value().to(torch::kDouble)}, {buffers[item.key()].to(torch::kDouble)}));
  }
  return largest;
}

inline torch::Tensor squared_error(const torch::Tensor& output, const torch::Tensor& target) {
  return (output - target).square().mean();
}

}  // namespace pipeline_testing
