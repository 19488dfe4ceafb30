// SPDX-License-Identifier: Apache-2.0
// The models of the gpu bench with their inputs and initial weights; bench/peers/gpu_models.py has the same in Python.
#pragma once

#include <accelerate/accelerate.hpp>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "bench/nets.hpp"

namespace bench {

/// Sizes of the models and batches.
struct GpuSizes {
  TransformerOptions gpt2{.vocabulary = 50257, .length = 1024, .layers = 12, .heads = 12, .width = 768};
  int64_t sequences = 8;
  std::vector<int64_t> stages{64, 128, 256, 512};  ///< channels of ResNet's stages
  int64_t blocks = 2;                              ///< residual blocks of a stage
  int64_t images = 64;
  int64_t pixels = 224;
};

/// Returns the published sizes, or with ACCELERATE_BENCH_SMALL small ones, with which a CPU runs every case in seconds.
inline GpuSizes gpu_sizes() {
  if (std::getenv("ACCELERATE_BENCH_SMALL") == nullptr) return {};
  return {.gpt2 = {.vocabulary = 512, .length = 64, .layers = 2, .heads = 2, .width = 64},
          .sequences = 2,
          .stages = {64, 128},
          .blocks = 1,
          .images = 4,
          .pixels = 32};
}

/// Two convolutions of 3x3, each with BatchNorm, beside the input or its 1x1 convolution.
struct ResidualImpl : torch::nn::Module {
  ResidualImpl(int64_t from, int64_t to, int64_t stride)
      : conv1(register_module("conv1", convolution(from, to, 3, stride))),
        bn1(register_module("bn1", torch::nn::BatchNorm2d(to))),
        conv2(register_module("conv2", convolution(to, to, 3, 1))),
        bn2(register_module("bn2", torch::nn::BatchNorm2d(to))) {
    if (from == to && stride == 1) return;
    shortcut = register_module("shortcut",
                               torch::nn::Sequential(convolution(from, to, 1, stride), torch::nn::BatchNorm2d(to)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = bn2(conv2(torch::relu(bn1(conv1(x)))));
    return torch::relu(y + (shortcut.is_empty() ? x : shortcut->forward(x)));
  }
  static torch::nn::Conv2d convolution(int64_t from, int64_t to, int64_t size, int64_t stride) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, size).stride(stride).padding(size / 2).bias(false));
  }
  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  torch::nn::Conv2d conv2;
  torch::nn::BatchNorm2d bn2;
  torch::nn::Sequential shortcut{nullptr};
};
TORCH_MODULE(Residual);

/// torchvision's resnet18, or its first stages: [B, 3, H, W] -> [B, 1000].
inline torch::nn::Sequential resnet(const GpuSizes& sizes) {
  using namespace torch::nn;
  Sequential net(Conv2d(Conv2dOptions(3, 64, 7).stride(2).padding(3).bias(false)), BatchNorm2d(64), ReLU(),
                 MaxPool2d(MaxPool2dOptions(3).stride(2).padding(1)));
  int64_t from = 64;
  for (const int64_t to : sizes.stages) {
    net->push_back(Residual(from, to, from == to ? 1 : 2));
    for (int64_t i = 1; i < sizes.blocks; ++i) net->push_back(Residual(to, to, 1));
    from = to;
  }
  net->push_back(AdaptiveAvgPool2d(AdaptiveAvgPool2dOptions(1)));
  net->push_back(Flatten());
  net->push_back(Linear(from, 1000));
  return net;
}

/// Tokens [B, T + 1] -> their loss, without logits.
struct LanguageLossImpl : torch::nn::Module {
  LanguageLossImpl(const TransformerOptions& options, bool the_fused)
      : fused(the_fused), transformer(register_module("transformer", Transformer(options))) {}
  torch::Tensor forward(const torch::Tensor& tokens) {
    const auto length = tokens.size(1) - 1;
    return accelerate::nn::linear_cross_entropy(transformer->hidden(tokens.narrow(1, 0, length)),
                                                transformer->token->weight, tokens.narrow(1, 1, length),
                                                {.fused_kernel = fused});
  }
  bool fused;
  Transformer transformer;
};
TORCH_MODULE(LanguageLoss);

/// Returns the module with the weights of the peers.
template <typename Holder>
Holder with_weights(Holder net) {
  auto parameters = net->named_parameters();
  draw_weights(parameters, 0.02);
  return net;
}

/// Inputs of a model, and targets unless the input contains them.
struct Batch {
  torch::Tensor x;
  torch::Tensor y{};
};

/// Returns random tokens, [B, T + 1].
inline Batch tokens(const GpuSizes& sizes) {
  torch::manual_seed(2);
  return {.x = torch::randint(sizes.gpt2.vocabulary, {sizes.sequences, sizes.gpt2.length + 1})};
}

/// Returns random images with their classes, [B, 3, H, W] and [B].
inline Batch images(const GpuSizes& sizes) {
  torch::manual_seed(2);
  auto x = torch::randn({sizes.images, 3, sizes.pixels, sizes.pixels});
  return {.x = std::move(x), .y = torch::randint(1000, {sizes.images})};
}

/// Returns random digits with their classes, [64, 1, 28, 28] and [64], on a CPU too.
inline Batch digits(const GpuSizes& /*sizes*/) {
  torch::manual_seed(2);
  auto x = torch::randn({64, 1, 28, 28});
  return {.x = std::move(x), .y = torch::randint(10, {64})};
}

/// Returns a package of peers/gpu_packages.py. The folder of the packages is new and belongs to this user.
inline accelerate::nn::CompiledPackage compiled_package(const std::string& name) {
  const char* folder = std::getenv("ACCELERATE_BENCH_DATA");
  if (folder == nullptr) {
    throw std::runtime_error("ACCELERATE_BENCH_DATA is not set, must be a folder of bench/peers/gpu_packages.py");
  }
  return accelerate::nn::CompiledPackage(std::string(folder) + "/" + name + ".pt2", {.trusted = true});
}

}  // namespace bench
