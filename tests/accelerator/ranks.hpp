// SPDX-License-Identifier: Apache-2.0
// Runs facade tests on P ranks in one process, each with its own Accelerator.
#pragma once

#include <functional>

#include "accelerate/accelerate.hpp"

/// Runs test(accelerator) on P ranks. doctest's assertions are thread-safe; models are created one after another,
/// because the ranks share LibTorch's generator.
inline void on_ranks(int64_t ranks, const std::function<void(accelerate::Accelerator&)>& test,
                     const accelerate::AcceleratorOptions& options = {}) {
  accelerate::simulate(ranks, [&] {
    accelerate::Accelerator accelerator(options);
    test(accelerator);
  });
}

/// One weight w, out = w * x.
struct OneWeightImpl : torch::nn::Module {
  explicit OneWeightImpl(double start = 0) { w = register_parameter("w", torch::full({1}, start, torch::kDouble)); }
  torch::Tensor forward(const torch::Tensor& x) { return w * x; }
  torch::Tensor w;
};
TORCH_MODULE(OneWeight);

/// Data 0.0, 1.0, ..., n-1, and the same numbers as int64 targets.
inline accelerate::data::Loader counting(int64_t samples, int64_t batch_size,
                                         accelerate::data::LoaderOptions options = {}) {
  options.batch_size = batch_size;
  return accelerate::data::from_tensors(torch::arange(samples, torch::kDouble), torch::arange(samples), options);
}

inline std::vector<int64_t> numbers(const torch::Tensor& tensor) {
  const auto flat = tensor.to(torch::kCPU, torch::kLong).flatten().contiguous();
  return {flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel()};
}

inline std::vector<int64_t> up_to(int64_t n) { return numbers(torch::arange(n)); }

inline torch::Tensor full(double value) { return torch::full({1}, value, torch::kDouble); }
