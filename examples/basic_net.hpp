// SPDX-License-Identifier: Apache-2.0
// The classic MNIST network of PyTorch's examples.
#pragma once

#include <torch/torch.h>

struct BasicNetImpl : torch::nn::Module {
  /// \param dropout  If false, both dropout layers are disabled, for comparisons.
  explicit BasicNetImpl(bool dropout = true) : dropout_(dropout) {}

  /// \param x  Images [B, 1, 28, 28]. \returns log-probabilities [B, 10].
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(conv1->forward(x));
    x = torch::relu(conv2->forward(x));
    x = torch::max_pool2d(x, 2);
    x = torch::dropout(x, 0.25, is_training() && dropout_);
    x = torch::relu(fc1->forward(x.flatten(1)));
    x = torch::dropout(x, 0.5, is_training() && dropout_);
    return torch::log_softmax(fc2->forward(x), 1);
  }

  torch::nn::Conv2d conv1 = register_module("conv1", torch::nn::Conv2d(1, 32, 3));
  torch::nn::Conv2d conv2 = register_module("conv2", torch::nn::Conv2d(32, 64, 3));
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(9216, 128));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(128, 10));

 private:
  bool dropout_;
};
TORCH_MODULE(BasicNet);
