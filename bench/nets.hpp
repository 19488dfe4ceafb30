// SPDX-License-Identifier: Apache-2.0
// The networks of the benches; bench/peers has the same in Python.
#pragma once

#include <accelerate/accelerate.hpp>
#include <functional>
#include <string>
#include <vector>

namespace bench {

/// Linear layers of the given sizes with ReLU between them.
struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(const std::vector<int64_t>& sizes) {
    for (size_t i = 0; i + 1 < sizes.size(); ++i) {
      layers.push_back(register_module("linear" + std::to_string(i), torch::nn::Linear(sizes[i], sizes[i + 1])));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (size_t i = 0; i + 1 < layers.size(); ++i) x = torch::relu(layers[i](x));
    return layers.back()(x);
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Mlp);

/// PyTorch's MNIST example: [N, 1, 28, 28] -> log-probabilities [N, 10].
struct BasicNetImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(conv2(torch::relu(conv1(x)))), 2);
    x = torch::flatten(torch::dropout(x, 0.25, is_training()), 1);
    x = torch::dropout(torch::relu(fc1(x)), 0.5, is_training());
    return torch::log_softmax(fc2(x), 1);
  }
  torch::nn::Conv2d conv1{register_module("conv1", torch::nn::Conv2d(1, 32, 3))};
  torch::nn::Conv2d conv2{register_module("conv2", torch::nn::Conv2d(32, 64, 3))};
  torch::nn::Linear fc1{register_module("fc1", torch::nn::Linear(9216, 128))};
  torch::nn::Linear fc2{register_module("fc2", torch::nn::Linear(128, 10))};
};
TORCH_MODULE(BasicNet);

/// A GPU works on after the last step returned.
inline std::function<void()> finish(const accelerate::Accelerator& accelerator) {
  if (!accelerator.device().is_cuda()) return {};
  return [] { torch::cuda::synchronize(); };
}

/// Versions, backend and threads of this process, for people.
inline std::string about(const accelerate::Accelerator& accelerator) {
  return fmt::format("Accelerate for C++, LibTorch {}, {} on {} rank(s), {} thread(s), {}", TORCH_VERSION,
                     accelerator.group().backend(), accelerator.num_processes(), at::get_num_threads(),
                     accelerator.device().str());
}

}  // namespace bench
