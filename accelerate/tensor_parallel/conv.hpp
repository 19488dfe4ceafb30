// SPDX-License-Identifier: Apache-2.0
// Convolutions with channels split over the ranks of a tensor parallel group.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/pimpl.h>

#include <iosfwd>
#include <utility>
#include <vector>

#include "accelerate/comm/group.hpp"
#include "accelerate/tensor_parallel/parameter_split.hpp"

namespace accelerate::nn {

/// Common part of both convolutions: options of LibTorch, and parameters with its names.
class ParallelConv2dBase : public SplitLayer {
 public:
  /// Options of the whole layer.
  torch::nn::Conv2dOptions options;
  at::Tensor weight, bias;

 protected:
  ParallelConv2dBase(torch::nn::Conv2dOptions the_options, comm::Group group)
      : SplitLayer(std::move(group)), options(the_options) {}
  [[nodiscard]] at::Tensor convolve(const at::Tensor& input, const at::Tensor& the_bias) const;
  void print(std::ostream& stream, const char* name) const;
};

/// torch::nn::Conv2d of which each rank computes out_channels / P channels: the first of a pair.
///
/// All ranks of the group must call forward, and run backward through it, equally often and in the same order. Forward
/// needs no communication; backward has one all-reduce of the input's gradient, which runs while the gradients of
/// weight and bias are computed. Parameters are weight [out_channels / P, in_channels, ...] and bias [out_channels /
/// P]; initial values are the part of the whole layer's. Unlike linear layers, it has second derivatives. Not
/// thread-safe.
class ColumnParallelConv2dImpl : public torch::nn::Cloneable<ColumnParallelConv2dImpl>, public ParallelConv2dBase {
 public:
  /// \throws Error (usage) if out_channels is not divisible by the number of ranks, and for groups or a padding_mode
  ///         other than zeros.
  ColumnParallelConv2dImpl(const torch::nn::Conv2dOptions& options, comm::Group group);
  /// Keeps this rank's part of a layer that is equal on all ranks, as a copy.
  ColumnParallelConv2dImpl(const torch::nn::Conv2dImpl& whole, comm::Group group);

  /// \param input  [N, in_channels, H, W] or [in_channels, H, W], equal on all ranks.
  /// \returns this rank's channels, [N, out_channels / P, ...].
  at::Tensor forward(const at::Tensor& input);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  [[nodiscard]] std::vector<ParameterSplit> parameter_splits() const override;

 private:
  void take(const torch::nn::Conv2dImpl& whole);
};

/// `accelerate::nn::ColumnParallelConv2d conv(torch::nn::Conv2dOptions(64, 128, 3).padding(1), group);`
TORCH_MODULE(ColumnParallelConv2d);

/// torch::nn::Conv2d of which each rank has in_channels / P input channels: the second of a pair.
///
/// Forward has one all-reduce of the output; backward needs no communication. Parameters are weight
/// [out_channels, in_channels / P, ...] and bias [out_channels], which is equal on all ranks. Not thread-safe.
class RowParallelConv2dImpl : public torch::nn::Cloneable<RowParallelConv2dImpl>, public ParallelConv2dBase {
 public:
  /// \throws Error (usage) if in_channels is not divisible by the number of ranks, and for groups or a padding_mode
  ///         other than zeros.
  RowParallelConv2dImpl(const torch::nn::Conv2dOptions& options, comm::Group group);
  /// Keeps this rank's part of a layer that is equal on all ranks, as a copy.
  RowParallelConv2dImpl(const torch::nn::Conv2dImpl& whole, comm::Group group);

  /// \param input  This rank's channels, [N, in_channels / P, H, W] or [in_channels / P, H, W].
  /// \returns [N, out_channels, ...], equal on all ranks.
  at::Tensor forward(const at::Tensor& input);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  [[nodiscard]] std::vector<ParameterSplit> parameter_splits() const override;

 private:
  void take(const torch::nn::Conv2dImpl& whole);
};

/// `accelerate::nn::RowParallelConv2d conv(torch::nn::Conv2dOptions(128, 64, 3).padding(1), group);`
TORCH_MODULE(RowParallelConv2d);

}  // namespace accelerate::nn
