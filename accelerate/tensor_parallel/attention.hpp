// SPDX-License-Identifier: Apache-2.0
// Multi-head attention with heads split over the ranks of a tensor parallel group.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <iosfwd>
#include <utility>
#include <vector>

#include "accelerate/comm/group.hpp"
#include "accelerate/tensor_parallel/linear.hpp"
#include "accelerate/tensor_parallel/parameter_split.hpp"

namespace accelerate::nn {

struct ParallelMultiheadAttentionOptions {
  ParallelMultiheadAttentionOptions(int64_t embed_dim, int64_t num_heads)
      : embed_dim_(embed_dim), num_heads_(num_heads) {}
  /// Features of query, key, value and output, divisible by num_heads.
  TORCH_ARG(int64_t, embed_dim);
  /// Heads of the whole layer, divisible by the number of ranks.
  TORCH_ARG(int64_t, num_heads);
  /// Probability of a zero in the attention weights; the masks of the ranks differ.
  TORCH_ARG(double, dropout) = 0.0;
  /// If true, both projections add a bias.
  TORCH_ARG(bool, bias) = true;
  /// If true, query, key, value and output are this rank's part of the sequence, dimension 0.
  TORCH_ARG(bool, sequence_parallel) = false;
};

/// torch::nn::MultiheadAttention with num_heads / P heads on each rank: the projection of query, key and value is split
/// by columns, the projection of the output by rows.
///
/// All ranks of the group must call forward, and run backward through it, equally often and in the same order. Forward
/// has one all-reduce of the output; backward has one all-reduce for each different tensor among query, key and value.
///
/// Parameters are those of torch::nn::MultiheadAttention: in_proj_weight [3 * embed_dim / P, embed_dim],
/// in_proj_bias [3 * embed_dim / P], out_proj.weight [embed_dim, embed_dim / P] and out_proj.bias [embed_dim]. Initial
/// values are the part of the whole layer's. Not thread-safe.
class ParallelMultiheadAttentionImpl : public torch::nn::Cloneable<ParallelMultiheadAttentionImpl>, public SplitLayer {
 public:
  /// \throws Error (usage) if embed_dim is not divisible by num_heads, or num_heads by the number of ranks.
  ParallelMultiheadAttentionImpl(const ParallelMultiheadAttentionOptions& options, comm::Group group);
  ParallelMultiheadAttentionImpl(int64_t embed_dim, int64_t num_heads, comm::Group group)
      : ParallelMultiheadAttentionImpl(ParallelMultiheadAttentionOptions(embed_dim, num_heads), std::move(group)) {}
  /// Keeps this rank's part of a layer that is equal on all ranks, as a copy.
  /// \throws Error (usage) if the layer has kdim, vdim, add_bias_kv or add_zero_attn, which are not supported.
  ParallelMultiheadAttentionImpl(const torch::nn::MultiheadAttentionImpl& whole, comm::Group group);

  /// Arguments have the meaning of PyTorch's MultiheadAttention in Python. Query, key and value that are one tensor
  /// object are projected in one product.
  ///
  /// \param query             [L, N, embed_dim]; with sequence_parallel [L / P, N, embed_dim].
  /// \param key               [S, N, embed_dim] or [S / P, N, embed_dim].
  /// \param value             As key.
  /// \param key_padding_mask  Bool [N, S], true for keys that are ignored; or undefined.
  /// \param attn_mask         [L, S] or [N * num_heads, L, S]: bool, true for pairs that are ignored, or floating point
  ///                          numbers that are added to the scores; or undefined.
  /// \returns the output [L, N, embed_dim] or [L / P, N, embed_dim], without attention weights.
  at::Tensor forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const at::Tensor& key_padding_mask = {}, const at::Tensor& attn_mask = {});

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  [[nodiscard]] std::vector<ParameterSplit> parameter_splits() const override;

  ParallelMultiheadAttentionOptions options;
  at::Tensor in_proj_weight, in_proj_bias;
  RowParallelLinear out_proj{nullptr};

 protected:
  FORWARD_HAS_DEFAULT_ARGS({3, torch::nn::AnyValue(at::Tensor())}, {4, torch::nn::AnyValue(at::Tensor())})

 private:
  void take(const torch::nn::MultiheadAttentionImpl& whole);
  [[nodiscard]] std::vector<at::Tensor> project(const at::Tensor& query, const at::Tensor& key,
                                                const at::Tensor& value) const;
  [[nodiscard]] at::Tensor project_part(const at::Tensor& input, int64_t first, int64_t count) const;
  [[nodiscard]] at::Tensor mask(const at::Tensor& key_padding_mask, const at::Tensor& attn_mask,
                                const at::Tensor& query) const;
};

/// `accelerate::nn::ParallelMultiheadAttention attention(768, 12, group);`
TORCH_MODULE(ParallelMultiheadAttention);

}  // namespace accelerate::nn
