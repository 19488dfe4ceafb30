// SPDX-License-Identifier: Apache-2.0
// Layer normalisation in a sequence parallel region.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <iosfwd>
#include <memory>
#include <optional>
#include <utility>

#include "accelerate/comm/group.hpp"

namespace accelerate::nn {

/// torch::nn::LayerNorm for this rank's part of a sequence. The parameters are equal on all ranks; their gradients are
/// summed over the ranks in backward, because each rank normalises other rows.
///
/// All ranks of the group must run backward through it equally often and in the same order. Not thread-safe.
class SequenceParallelLayerNormImpl : public torch::nn::LayerNormImpl {
 public:
  SequenceParallelLayerNormImpl(const torch::nn::LayerNormOptions& the_options, comm::Group group)
      : torch::nn::LayerNormImpl(the_options), group_(std::move(group)) {}
  /// Shares options, parameters and mode with the other layer.
  SequenceParallelLayerNormImpl(const torch::nn::LayerNormImpl& stock, comm::Group group)
      : torch::nn::LayerNormImpl(stock), group_(std::move(group)) {}

  /// \param input  [..., S / P, ..., features].
  at::Tensor forward(const at::Tensor& input);

  std::shared_ptr<torch::nn::Module> clone(const std::optional<at::Device>& device = std::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;

 private:
  comm::Group group_;
};

/// `accelerate::nn::SequenceParallelLayerNorm norm(torch::nn::LayerNormOptions({768}), group);`
TORCH_MODULE(SequenceParallelLayerNorm);

}  // namespace accelerate::nn
