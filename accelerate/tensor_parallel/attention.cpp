// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tensor_parallel/attention.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <optional>
#include <ostream>
#include <string_view>
#include <utility>

#include "accelerate/base/error.hpp"
#include "accelerate/tensor_parallel/collectives.hpp"
#include "accelerate/tensor_parallel/dropout.hpp"
#include "accelerate/tensor_parallel/split_linear.hpp"

namespace accelerate::nn {
namespace {

constexpr std::string_view kAttention = "parallel_multihead_attention";

// Each rank has its heads of query, key and value.
const ParameterSplit kInProjWeight{.name = "in_proj_weight", .dim = 0, .blocks = 3};
const ParameterSplit kInProjBias{.name = "in_proj_bias", .dim = 0, .blocks = 3};

template <typename... Args>
[[noreturn]] void refuse_attention(const comm::Group& group, fmt::format_string<Args...> format, Args&&... args) {
  base::fail(ErrorKind::usage, group.place(), kAttention, format, std::forward<Args>(args)...);
}

ParallelMultiheadAttentionOptions options_of(const torch::nn::MultiheadAttentionOptions& whole) {
  return ParallelMultiheadAttentionOptions(whole.embed_dim(), whole.num_heads())
      .dropout(whole.dropout())
      .bias(whole.bias());
}

void check_input(const at::Tensor& input, const char* name, int64_t features, const comm::Group& group) {
  if (input.dim() == 3 && input.size(2) == features) return;
  refuse_attention(group, "{} is [{}], must be [sequence, batch, {}]", name, c10::Join(", ", input.sizes()), features);
}

/// Adds a mask to the sum of masks.
at::Tensor with_mask(const at::Tensor& sum, const at::Tensor& mask, const at::TensorOptions& options) {
  const at::Tensor added =
      mask.scalar_type() == at::kBool
          ? at::zeros(mask.sizes(), options).masked_fill(mask, -std::numeric_limits<double>::infinity())
          : mask.to(options.dtype());
  return sum.defined() ? sum + added : added;
}

}  // namespace

ParallelMultiheadAttentionImpl::ParallelMultiheadAttentionImpl(const ParallelMultiheadAttentionOptions& the_options,
                                                               comm::Group group)
    : SplitLayer(std::move(group)), options(the_options) {
  ParallelMultiheadAttentionImpl::reset();
}

ParallelMultiheadAttentionImpl::ParallelMultiheadAttentionImpl(const torch::nn::MultiheadAttentionImpl& whole,
                                                               comm::Group group)
    : SplitLayer(std::move(group)), options(options_of(whole.options)) {
  take(whole);
  train(whole.is_training());
}

void ParallelMultiheadAttentionImpl::reset() {
  if (options.num_heads() < 1 || options.embed_dim() % options.num_heads() != 0) {
    refuse_attention(group(), "embed_dim is {}, must be divisible by num_heads {}", options.embed_dim(),
                     options.num_heads());
  }
  take(torch::nn::MultiheadAttentionImpl(
      torch::nn::MultiheadAttentionOptions(options.embed_dim(), options.num_heads()).bias(options.bias())));
}

void ParallelMultiheadAttentionImpl::take(const torch::nn::MultiheadAttentionImpl& whole) {
  part_size(kAttention, "num_heads", options.num_heads(), group());
  if (!whole.in_proj_weight.defined() || whole.bias_k.defined() || whole.options.add_zero_attn()) {
    refuse_attention(group(), "the layer has kdim, vdim, add_bias_kv or add_zero_attn, which are not supported");
  }
  in_proj_weight =
      register_parameter("in_proj_weight", part(whole.in_proj_weight, kInProjWeight), learns(whole.in_proj_weight));
  in_proj_bias = register_parameter("in_proj_bias", part(whole.in_proj_bias, kInProjBias), learns(whole.in_proj_bias));
  out_proj = register_module("out_proj", RowParallelLinear(*whole.out_proj, group()));
  if (options.sequence_parallel()) out_proj->options.sequence_dim(0);
}

std::vector<ParameterSplit> ParallelMultiheadAttentionImpl::parameter_splits() const {
  return {kInProjWeight, kInProjBias};
}

/// Projects with `count` of the three blocks query, key, value.
at::Tensor ParallelMultiheadAttentionImpl::project_part(const at::Tensor& input, int64_t first, int64_t count) const {
  const int64_t block = in_proj_weight.size(0) / 3;
  const auto of = [&](const at::Tensor& whole) {
    return whole.defined() && count < 3 ? whole.narrow(0, first * block, count * block) : whole;
  };
  return split_linear(input, of(in_proj_weight), of(in_proj_bias),
                      options.sequence_parallel() ? LinearSplit::column_sequence : LinearSplit::column, 0, group());
}

/// Returns query, key and value, each [N, heads of this rank, sequence, features of a head].
std::vector<at::Tensor> ParallelMultiheadAttentionImpl::project(const at::Tensor& query, const at::Tensor& key,
                                                                const at::Tensor& value) const {
  std::vector<at::Tensor> parts;
  if (query.is_same(key) && key.is_same(value)) {
    parts = project_part(query, 0, 3).chunk(3, -1);
  } else if (key.is_same(value)) {
    parts = project_part(key, 1, 2).chunk(2, -1);
    parts.insert(parts.begin(), project_part(query, 0, 1));
  } else {
    parts = {project_part(query, 0, 1), project_part(key, 1, 1), project_part(value, 2, 1)};
  }
  const int64_t heads = options.num_heads() / group().size(), features = options.embed_dim() / options.num_heads();
  for (at::Tensor& each : parts) {
    each = each.reshape({each.size(0), each.size(1), heads, features}).permute({1, 2, 0, 3});
  }
  return parts;
}

/// Returns the summand of the scores of this rank's heads, or an undefined tensor.
at::Tensor ParallelMultiheadAttentionImpl::mask(const at::Tensor& key_padding_mask, const at::Tensor& attn_mask,
                                                const at::Tensor& query) const {
  at::Tensor sum;
  if (attn_mask.defined()) {
    at::Tensor own = attn_mask;
    if (attn_mask.dim() == 3) {
      const int64_t all = options.num_heads(), heads = all / group().size();
      own = attn_mask.reshape({query.size(0), all, attn_mask.size(1), attn_mask.size(2)})
                .narrow(1, group().rank() * heads, heads);
    }
    sum = with_mask(sum, own, query.options());
  }
  if (key_padding_mask.defined()) sum = with_mask(sum, key_padding_mask.unsqueeze(1).unsqueeze(2), query.options());
  return sum;
}

at::Tensor ParallelMultiheadAttentionImpl::forward(const at::Tensor& query, const at::Tensor& key,
                                                   const at::Tensor& value, const at::Tensor& key_padding_mask,
                                                   const at::Tensor& attn_mask) {
  check_input(query, "query", options.embed_dim(), group());
  check_input(key, "key", options.embed_dim(), group());
  check_input(value, "value", options.embed_dim(), group());
  const auto parts = project(query, key, value);
  const at::Tensor &q = parts[0], &k = parts[1], &v = parts[2];
  const at::Tensor added = mask(key_padding_mask, attn_mask, q);
  at::Tensor heads;
  if (is_training() && options.dropout() > 0) {
    // LibTorch's fused attention draws its masks from the default generator, which is equal on all ranks.
    at::Tensor scores = at::matmul(q / std::sqrt(static_cast<double>(q.size(3))), k.transpose(-2, -1));
    if (added.defined()) scores = scores + added;
    heads = at::matmul(parallel_dropout(at::softmax(scores, -1), options.dropout(), true, group()), v);
  } else {
    heads = at::scaled_dot_product_attention(q, k, v, added.defined() ? std::optional(added) : std::nullopt);
  }
  return out_proj(heads.permute({2, 0, 1, 3}).flatten(2));
}

void ParallelMultiheadAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << fmt::format(
      "accelerate::nn::ParallelMultiheadAttention(embed_dim={}, num_heads={}, dropout={}, bias={}, ranks={}{})",
      options.embed_dim(), options.num_heads(), options.dropout(), options.bias(), group().size(),
      options.sequence_parallel() ? ", sequence_parallel=true" : "");
}

}  // namespace accelerate::nn
