// SPDX-License-Identifier: Apache-2.0
#include "accelerate/deferred/init_empty_weights.hpp"

#include <torch/nn/module.h>

#include "accelerate/deferred/deferred_tensor.hpp"

namespace accelerate {
namespace deferred {

DeferralScope::DeferralScope() : was_deferring_(set_deferring(true)) {}
DeferralScope::~DeferralScope() { set_deferring(was_deferring_); }

}  // namespace deferred

void materialize(const torch::nn::Module& module) {
  for (const at::Tensor& parameter : module.parameters()) deferred::materialize_tensor(parameter);
  for (const at::Tensor& buffer : module.buffers()) deferred::materialize_tensor(buffer);
}

void materialize(const at::Tensor& tensor) { deferred::materialize_tensor(tensor); }

}  // namespace accelerate
