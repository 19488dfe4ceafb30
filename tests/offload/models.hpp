// SPDX-License-Identifier: Apache-2.0
// Models of the tests of offload.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <stdexcept>

namespace offload_testing {

/// Blocks of about 1 MiB, each a unit, after an input layer with a buffer.
struct DeepNetImpl : torch::nn::Module {
  explicit DeepNetImpl(int64_t blocks_count = 6) {
    for (int64_t i = 0; i < blocks_count; ++i) blocks->push_back(torch::nn::Linear(512, 512));
    register_module("blocks", blocks);
    register_module("head", head);
  }
  at::Tensor forward(at::Tensor x) {
    x = first(x * scale);
    for (const auto& block : *blocks) {
      if (--throws_after == 0) throw std::runtime_error("stopped");
      x = x + torch::tanh(block->as<torch::nn::Linear>()->forward(x));
    }
    return head(x);
  }
  at::Tensor scale = register_buffer("scale", torch::full({1}, 0.5));
  torch::nn::Linear first = register_module("first", torch::nn::Linear(8, 512));
  torch::nn::ModuleList blocks{};
  torch::nn::Linear head{512, 3};
  int64_t throws_after = 0;  ///< number of the block before which forward() throws
};
TORCH_MODULE(DeepNet);

inline constexpr int64_t kUnitBytes = (512 * 512 + 512) * 4;

inline at::Tensor input() { return torch::linspace(-1, 1, 16).view({2, 8}); }

/// The net of each seed has the same values in every call.
inline DeepNet deep_net(uint64_t seed = 1) {
  torch::manual_seed(seed);
  return DeepNet();
}

inline at::Tensor output_of(DeepNet& net) {
  const torch::NoGradGuard no_grad;
  return net(input());
}

}  // namespace offload_testing
