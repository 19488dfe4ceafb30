// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tensor_parallel/layer_norm.hpp"

#include <ATen/ops/layer_norm.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <ostream>

#include "accelerate/tensor_parallel/group_functions.hpp"

namespace accelerate::nn {

at::Tensor SequenceParallelLayerNormImpl::forward(const at::Tensor& input) {
  const auto summed = [&](const at::Tensor& parameter) {
    return parameter.defined() ? copy_to_group(parameter, group_) : at::Tensor();
  };
  return at::layer_norm(input, options.normalized_shape(), summed(weight), summed(bias), options.eps());
}

// LibTorch's clone() creates a torch::nn::LayerNorm, of which this class shares the new tensors.
std::shared_ptr<torch::nn::Module> SequenceParallelLayerNormImpl::clone(const std::optional<at::Device>& device) const {
  const auto copy = torch::nn::LayerNormImpl::clone(device);
  return std::make_shared<SequenceParallelLayerNormImpl>(*copy->as<torch::nn::LayerNormImpl>(), group_);
}

void SequenceParallelLayerNormImpl::pretty_print(std::ostream& stream) const {
  stream << fmt::format("accelerate::nn::SequenceParallelLayerNorm([{}], eps={}, ranks={})",
                        c10::Join(", ", options.normalized_shape()), options.eps(), group_.size());
}

}  // namespace accelerate::nn
