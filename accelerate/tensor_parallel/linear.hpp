// SPDX-License-Identifier: Apache-2.0
// Linear layers that are split over the ranks of a tensor parallel group.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <utility>
#include <vector>

#include "accelerate/comm/group.hpp"
#include "accelerate/tensor_parallel/parameter_split.hpp"

namespace accelerate::nn {

struct ColumnParallelLinearOptions {
  ColumnParallelLinearOptions(int64_t in_features, int64_t out_features)
      : in_features_(in_features), out_features_(out_features) {}
  /// Input features.
  TORCH_ARG(int64_t, in_features);
  /// Output features of the whole layer, divisible by the number of ranks.
  TORCH_ARG(int64_t, out_features);
  /// If true, the layer adds a bias.
  TORCH_ARG(bool, bias) = true;
  /// If true, every rank receives the outputs of all ranks; otherwise its own part, for a RowParallelLinear.
  TORCH_ARG(bool, gather_output) = false;
  /// If set, the input is this rank's part of the sequence along this dimension (sequence parallelism).
  TORCH_ARG(std::optional<int64_t>, sequence_dim) = std::nullopt;
};

/// The first linear layer of a pair: each rank has out_features / P rows of the weight.
///
/// All ranks of the group must call forward, and run backward through it, equally often and in the same order. Forward
/// needs no communication (one all-gather with sequence_dim, and one more with gather_output). Backward has one
/// all-reduce of the input's gradient (a reduce-scatter with sequence_dim), which runs while the weight's gradient is
/// computed.
///
/// Parameters are those of torch::nn::Linear: weight [out_features / P, in_features] and bias [out_features / P]. A new
/// layer draws the whole layer's initial values and keeps its part, so P ranks with equal generators start like one
/// process. whole_state_dict() joins the parts. Not thread-safe.
class ColumnParallelLinearImpl : public torch::nn::Cloneable<ColumnParallelLinearImpl>, public SplitLayer {
 public:
  /// \throws Error (usage) if out_features is not divisible by the number of ranks.
  ColumnParallelLinearImpl(const ColumnParallelLinearOptions& options, comm::Group group);
  ColumnParallelLinearImpl(int64_t in_features, int64_t out_features, comm::Group group)
      : ColumnParallelLinearImpl(ColumnParallelLinearOptions(in_features, out_features), std::move(group)) {}
  /// Keeps this rank's part of a layer that is equal on all ranks, as a copy.
  ColumnParallelLinearImpl(const torch::nn::LinearImpl& whole, comm::Group group);

  /// \param input  [..., in_features], equal on all ranks; with sequence_dim, [..., S / P, ..., in_features].
  /// \returns [..., out_features / P], or [..., out_features] with gather_output.
  /// \throws Error (usage) for another last dimension, or a sequence_dim that is none of the input.
  at::Tensor forward(const at::Tensor& input);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  [[nodiscard]] std::vector<ParameterSplit> parameter_splits() const override;

  ColumnParallelLinearOptions options;
  at::Tensor weight, bias;

 private:
  void take(const torch::nn::LinearImpl& whole);
};

/// `accelerate::nn::ColumnParallelLinear up(768, 3072, group);`
TORCH_MODULE(ColumnParallelLinear);

struct RowParallelLinearOptions {
  RowParallelLinearOptions(int64_t in_features, int64_t out_features)
      : in_features_(in_features), out_features_(out_features) {}
  /// Input features of the whole layer, divisible by the number of ranks.
  TORCH_ARG(int64_t, in_features);
  /// Output features.
  TORCH_ARG(int64_t, out_features);
  /// If true, the layer adds a bias, once, after the sum over the ranks.
  TORCH_ARG(bool, bias) = true;
  /// If true, the input is this rank's part of the features; otherwise the whole input, of which it takes its part.
  TORCH_ARG(bool, input_is_parallel) = true;
  /// If set, each rank keeps its part of the output's sequence along this dimension (sequence parallelism).
  TORCH_ARG(std::optional<int64_t>, sequence_dim) = std::nullopt;
};

/// The second linear layer of a pair: each rank has in_features / P columns of the weight.
///
/// All ranks of the group must call forward, and run backward through it, equally often and in the same order. Forward
/// has one all-reduce of the output (a reduce-scatter with sequence_dim). Backward needs no communication (one
/// all-gather with sequence_dim).
///
/// Parameters are those of torch::nn::Linear: weight [out_features, in_features / P] and bias [out_features], which is
/// equal on all ranks. Initial values are as for ColumnParallelLinear. Not thread-safe.
class RowParallelLinearImpl : public torch::nn::Cloneable<RowParallelLinearImpl>, public SplitLayer {
 public:
  /// \throws Error (usage) if in_features is not divisible by the number of ranks.
  RowParallelLinearImpl(const RowParallelLinearOptions& options, comm::Group group);
  RowParallelLinearImpl(int64_t in_features, int64_t out_features, comm::Group group)
      : RowParallelLinearImpl(RowParallelLinearOptions(in_features, out_features), std::move(group)) {}
  /// Keeps this rank's part of a layer that is equal on all ranks, as a copy.
  RowParallelLinearImpl(const torch::nn::LinearImpl& whole, comm::Group group);

  /// \param input  [..., in_features / P], or [..., in_features] if input_is_parallel is false.
  /// \returns [..., out_features], equal on all ranks; with sequence_dim, this rank's part.
  /// \throws Error (usage) for another last dimension, or a sequence that is not divisible by the number of ranks.
  at::Tensor forward(const at::Tensor& input);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  [[nodiscard]] std::vector<ParameterSplit> parameter_splits() const override;

  RowParallelLinearOptions options;
  at::Tensor weight, bias;

 private:
  void take(const torch::nn::LinearImpl& whole);
};

/// `accelerate::nn::RowParallelLinear down(3072, 768, group);`
TORCH_MODULE(RowParallelLinear);

}  // namespace accelerate::nn
