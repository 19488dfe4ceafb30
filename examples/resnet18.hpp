// SPDX-License-Identifier: Apache-2.0
// ResNet-18 for small grey images, as in "Dive into Deep Learning": a 3x3 stem without max-pool.
#pragma once

#include <torch/torch.h>

/// relu(norm(conv(relu(norm(conv(x))))) + x); if the shape changes, x passes through a 1x1 convolution.
struct ResidualImpl : torch::nn::Cloneable<ResidualImpl> {
  ResidualImpl(int64_t from, int64_t to, int64_t stride = 1) : from_(from), to_(to), stride_(stride) { reset(); }

  void reset() override {
    using torch::nn::Conv2dOptions;
    conv1 = register_module("conv1", torch::nn::Conv2d(Conv2dOptions(from_, to_, 3).padding(1).stride(stride_)));
    conv2 = register_module("conv2", torch::nn::Conv2d(Conv2dOptions(to_, to_, 3).padding(1)));
    if (from_ != to_) {
      conv3 = register_module("conv3", torch::nn::Conv2d(Conv2dOptions(from_, to_, 1).stride(stride_)));
    }
    bn1 = register_module("bn1", torch::nn::BatchNorm2d(to_));
    bn2 = register_module("bn2", torch::nn::BatchNorm2d(to_));
  }

  torch::Tensor forward(torch::Tensor x) {
    const auto y = bn2(conv2(torch::relu(bn1(conv1(x)))));
    return torch::relu(y + (conv3.is_empty() ? x : conv3(x)));
  }

  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr}, conv3{nullptr};
  torch::nn::BatchNorm2d bn1{nullptr}, bn2{nullptr};

 private:
  int64_t from_, to_, stride_;
};
TORCH_MODULE(Residual);

/// A network from images [B, 1, H, W] to logits [B, classes]. The weights of convolutions and linear layers are normal
/// with deviation 0.01.
inline torch::nn::Sequential resnet18(int64_t classes = 10) {
  using namespace torch::nn;
  Sequential net(Conv2d(Conv2dOptions(1, 64, 3).padding(1)), BatchNorm2d(64), ReLU());
  int64_t from = 64;
  for (const int64_t to : {64, 128, 256, 512}) {
    net->push_back(Residual(from, to, from == to ? 1 : 2));
    net->push_back(Residual(to, to));
    from = to;
  }
  net->push_back(AdaptiveAvgPool2d(AdaptiveAvgPool2dOptions(1)));
  net->push_back(Flatten());
  net->push_back(Linear(512, classes));
  net->apply([](Module& module) {
    const torch::NoGradGuard no_grad;
    if (auto* conv = module.as<Conv2d>()) conv->weight.normal_(0, 0.01);
    if (auto* linear = module.as<Linear>()) linear->weight.normal_(0, 0.01);
  });
  return net;
}
