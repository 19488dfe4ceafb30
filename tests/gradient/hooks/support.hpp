// SPDX-License-Identifier: Apache-2.0
// Parameters with given gradients.
#pragma once

#include "../support.hpp"
//
#include "accelerate/gradient/hooks/compress.hpp"
#include "accelerate/gradient/hooks/function.hpp"
#include "accelerate/gradient/hooks/power_sgd.hpp"

namespace gradient_testing {

using namespace accelerate::gradient;
using accelerate::comm::run_threads;

/// Zero-initialised parameters with a reducer and the hook.
struct Hooked {
  Hooked(const Group& group, const std::vector<std::vector<int64_t>>& shapes, const CommHook& hook,
         at::ScalarType dtype = at::kDouble, const BucketOptions& buckets = {})
      : parameters(made(shapes, dtype)),
        gradient_reducer(group.duplicate(), listed(parameters), {.buckets = buckets, .hook = hook}) {}

  /// Results of a backward that gives each parameter this gradient on this rank.
  std::vector<at::Tensor> reduced(const std::vector<at::Tensor>& gradients) {
    gradient_reducer.zero_all();
    at::Tensor loss = torch::zeros({}, parameters[0].options().requires_grad(false));
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (gradients[i].defined()) loss = loss + (parameters[i] * gradients[i]).sum();
    }
    loss.backward();
    return gradients_of(parameters);
  }

  static std::vector<at::Tensor> made(const std::vector<std::vector<int64_t>>& shapes, at::ScalarType dtype) {
    std::vector<at::Tensor> all;
    for (const auto& shape : shapes) all.push_back(torch::zeros(shape, torch::dtype(dtype).requires_grad(true)));
    return all;
  }
  static std::vector<NamedTensor> listed(const std::vector<at::Tensor>& tensors) {
    std::vector<NamedTensor> named;
    for (const at::Tensor& tensor : tensors) named.push_back({fmt::format("p{}", named.size()), tensor});
    return named;
  }

  std::vector<at::Tensor> parameters;
  GradientReducer gradient_reducer;
};

/// [rows, columns] of the given rank, equal on every rank with the same seed.
inline at::Tensor low_rank(int64_t rows, int64_t columns, int64_t rank, int64_t seed) {
  return numbers({rows, rank}, seed).mm(numbers({rank, columns}, seed + 1));
}

inline bool near(const at::Tensor& seen, const at::Tensor& expected, double tolerance) {
  return torch::allclose(seen.to(at::kDouble), expected.to(at::kDouble), tolerance, tolerance);
}

}  // namespace gradient_testing
