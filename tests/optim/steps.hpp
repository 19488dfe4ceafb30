// SPDX-License-Identifier: Apache-2.0
// Common code of the fused step tests: equal parameters, recorded gradients, and factories of LibTorch optimizers.
#pragma once

#include "tests/testing.hpp"
//
#include <functional>
#include <memory>
#include <vector>

#include "accelerate/optim/fused_step.hpp"

namespace optim_testing {

using Parameters = std::vector<at::Tensor>;
using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(const Parameters&)>;

inline Parameters parameters(at::ScalarType dtype = at::kDouble) {
  torch::manual_seed(7);
  Parameters list;
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{5, 3}, {3}, {2, 2, 2}}) {
    list.push_back(torch::randn(shape, dtype).requires_grad_());
  }
  return list;
}

/// Equal gradients for every list at the same step.
inline void set_gradients(const Parameters& list, int64_t step) {
  torch::manual_seed(static_cast<uint64_t>(100 + step));
  for (const auto& parameter : list) parameter.mutable_grad() = torch::randn_like(parameter);
}

inline double largest_difference(const Parameters& a, const Parameters& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, (a[i] - b[i]).abs().max().item<double>());
  return largest;
}

template <typename Optimizer, typename Options>
Make make(const Options& options) {
  return [options](const Parameters& list) { return std::make_unique<Optimizer>(list, options); };
}
inline Make sgd(const torch::optim::SGDOptions& options) { return make<torch::optim::SGD>(options); }
inline Make adam(const torch::optim::AdamOptions& options) { return make<torch::optim::Adam>(options); }
inline Make adamw(const torch::optim::AdamWOptions& options) { return make<torch::optim::AdamW>(options); }
inline Make adagrad(const torch::optim::AdagradOptions& options) { return make<torch::optim::Adagrad>(options); }
inline Make rmsprop(const torch::optim::RMSpropOptions& options) { return make<torch::optim::RMSprop>(options); }

/// One optimizer of each type, with state.
inline std::vector<Make> one_of_each() {
  return {sgd(torch::optim::SGDOptions(0.1).momentum(0.9)), adam(torch::optim::AdamOptions(0.01)),
          adamw(torch::optim::AdamWOptions(0.01).amsgrad(true)),
          adagrad(torch::optim::AdagradOptions(0.01).initial_accumulator_value(0.125).lr_decay(0.01)),
          rmsprop(torch::optim::RMSpropOptions(0.01).momentum(0.9).centered(true).eps(1e-3))};
}

/// Pieces that each contain a whole parameter.
inline std::vector<accelerate::state::ParameterShard> shards_of(const Parameters& list) {
  std::vector<accelerate::state::ParameterShard> parameter_shards;
  for (size_t i = 0; i < list.size(); ++i) {
    parameter_shards.push_back(accelerate::state::whole_parameter(std::to_string(i), list[i]));
  }
  return parameter_shards;
}

}  // namespace optim_testing
