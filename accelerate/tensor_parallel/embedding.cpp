// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tensor_parallel/embedding.hpp"

#include <ATen/ops/embedding.h>
#include <fmt/format.h>

#include <ostream>
#include <utility>

#include "accelerate/base/error.hpp"
#include "accelerate/tensor_parallel/collectives.hpp"
#include "accelerate/tensor_parallel/group_functions.hpp"
#include "accelerate/tensor_parallel/vocabulary.hpp"

namespace accelerate::nn {
namespace {

constexpr std::string_view kEmbedding = "vocab_parallel_embedding";
const ParameterSplit kPartOfVocabulary{.name = "weight", .dim = 0};

void check_supported(const torch::nn::EmbeddingOptions& options, const comm::Group& group) {
  const char* name = options.max_norm()             ? "max_norm"
                     : options.scale_grad_by_freq() ? "scale_grad_by_freq"
                     : options.sparse()             ? "sparse"
                                                    : nullptr;
  if (name == nullptr) return;
  base::fail(ErrorKind::usage, group.place(), kEmbedding, "the layer has {}, which is not supported; remove it", name);
}

}  // namespace

VocabParallelEmbeddingImpl::VocabParallelEmbeddingImpl(const VocabParallelEmbeddingOptions& the_options,
                                                       comm::Group group)
    : SplitLayer(std::move(group)), options(the_options) {
  VocabParallelEmbeddingImpl::reset();
}

VocabParallelEmbeddingImpl::VocabParallelEmbeddingImpl(const torch::nn::EmbeddingImpl& whole, comm::Group group)
    : SplitLayer(std::move(group)), options(whole.options.num_embeddings(), whole.options.embedding_dim()) {
  check_supported(whole.options, this->group());
  options.padding_idx(whole.options.padding_idx());
  take(whole.weight);
  train(whole.is_training());
}

void VocabParallelEmbeddingImpl::reset() {
  const auto whole = torch::nn::EmbeddingOptions(options.num_embeddings(), options.embedding_dim());
  take(torch::nn::EmbeddingImpl(torch::nn::EmbeddingOptions(whole).padding_idx(options.padding_idx())).weight);
}

void VocabParallelEmbeddingImpl::take(const at::Tensor& whole) {
  const int64_t size = part_size(kEmbedding, "num_embeddings", options.num_embeddings(), group());
  weight = register_parameter("weight", part(whole, kPartOfVocabulary), whole.requires_grad());
  own_padding_idx_ = -1;
  if (!options.padding_idx()) return;
  const int64_t padding = *options.padding_idx();
  const int64_t index = (padding < 0 ? padding + options.num_embeddings() : padding) - group().rank() * size;
  if (index >= 0 && index < size) own_padding_idx_ = index;
}

std::vector<ParameterSplit> VocabParallelEmbeddingImpl::parameter_splits() const { return {kPartOfVocabulary}; }

at::Tensor VocabParallelEmbeddingImpl::forward(const at::Tensor& indices) {
  check_indices(kEmbedding, indices, {}, options.num_embeddings(), group());
  const PartIndices own = in_part(indices, weight.size(0), group());
  const at::Tensor vectors =
      at::embedding(weight, own.index, own_padding_idx_).masked_fill(own.outside.unsqueeze(-1), 0);
  const auto& sequence = options.sequence_dim();
  return sequence ? reduce_scatter_to_group(vectors, *sequence, group()) : reduce_from_group(vectors, group());
}

void VocabParallelEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << fmt::format("accelerate::nn::VocabParallelEmbedding(num_embeddings={}, embedding_dim={}, ranks={}",
                        options.num_embeddings(), options.embedding_dim(), group().size());
  if (options.padding_idx()) stream << ", padding_idx=" << *options.padding_idx();
  if (options.sequence_dim()) stream << ", sequence_dim=" << *options.sequence_dim();
  stream << ')';
}

}  // namespace accelerate::nn
