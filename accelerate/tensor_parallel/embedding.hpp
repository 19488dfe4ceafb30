// SPDX-License-Identifier: Apache-2.0
// An embedding of which each rank of a tensor parallel group has a part of the vocabulary.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <utility>
#include <vector>

#include "accelerate/comm/group.hpp"
#include "accelerate/tensor_parallel/parameter_split.hpp"

namespace accelerate::nn {

struct VocabParallelEmbeddingOptions {
  VocabParallelEmbeddingOptions(int64_t num_embeddings, int64_t embedding_dim)
      : num_embeddings_(num_embeddings), embedding_dim_(embedding_dim) {}
  /// Size of the whole vocabulary, divisible by the number of ranks; pad the vocabulary if it is not.
  TORCH_ARG(int64_t, num_embeddings);
  /// Size of a vector.
  TORCH_ARG(int64_t, embedding_dim);
  /// Index whose vector starts as zero and receives no gradient; negative numbers count from the end.
  TORCH_ARG(std::optional<int64_t>, padding_idx) = std::nullopt;
  /// If set, each rank keeps its part of the output's sequence along this dimension (sequence parallelism).
  TORCH_ARG(std::optional<int64_t>, sequence_dim) = std::nullopt;
};

/// torch::nn::Embedding with num_embeddings / P vectors on each rank.
///
/// All ranks of the group call forward with equal indices, equally often and in the same order: one all-reduce of the
/// output (a reduce-scatter with sequence_dim). Backward needs no communication (one all-gather with sequence_dim).
///
/// The parameter is weight [num_embeddings / P, embedding_dim]; rank r has the r-th part of the vocabulary. Its initial
/// values are the part of the whole layer's. The part may also be the weight of
/// vocab_parallel_linear_cross_entropy(), for tied embeddings. Not thread-safe.
class VocabParallelEmbeddingImpl : public torch::nn::Cloneable<VocabParallelEmbeddingImpl>, public SplitLayer {
 public:
  /// \throws Error (usage) if num_embeddings is not divisible by the number of ranks.
  VocabParallelEmbeddingImpl(const VocabParallelEmbeddingOptions& options, comm::Group group);
  VocabParallelEmbeddingImpl(int64_t num_embeddings, int64_t embedding_dim, comm::Group group)
      : VocabParallelEmbeddingImpl(VocabParallelEmbeddingOptions(num_embeddings, embedding_dim), std::move(group)) {}
  /// Keeps this rank's part of a layer that is equal on all ranks, as a copy.
  /// \throws Error (usage) if the layer has max_norm, scale_grad_by_freq or sparse, which are not supported.
  VocabParallelEmbeddingImpl(const torch::nn::EmbeddingImpl& whole, comm::Group group);

  /// \param indices  int64 or int32, any shape, from 0 to num_embeddings - 1.
  /// \returns [..., embedding_dim], equal on all ranks; with sequence_dim, this rank's part.
  /// \throws Error (usage) on the CPU for an index outside of the vocabulary. Other devices do not check indices,
  ///         because reading them would block the host; the vector of such an index is zero.
  at::Tensor forward(const at::Tensor& indices);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  [[nodiscard]] std::vector<ParameterSplit> parameter_splits() const override;

  VocabParallelEmbeddingOptions options;
  at::Tensor weight;

 private:
  void take(const at::Tensor& whole);

  int64_t own_padding_idx_ = -1;  // within the part; -1 if another rank has it
};

/// `accelerate::nn::VocabParallelEmbedding tokens(50304, 768, group);`
TORCH_MODULE(VocabParallelEmbedding);

}  // namespace accelerate::nn
