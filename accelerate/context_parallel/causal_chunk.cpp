// SPDX-License-Identifier: Apache-2.0
#include "accelerate/context_parallel/causal_chunk.hpp"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace accelerate::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kChunkDim = 2;

/// The keys before the chunk, and those of the chunk itself.
struct KeyRanges {
  at::Tensor before, own;
};

KeyRanges ranges_of(const at::Tensor& keys, int64_t own) {
  const int64_t before = keys.size(kChunkDim) - own;
  return {keys.narrow(kChunkDim, 0, before), keys.narrow(kChunkDim, before, own)};
}

/// Attention to the keys before the chunk without a mask, and causal attention within the chunk. The two outputs are
/// combined by the logarithms of their sums of exponentials, as in ring attention.
struct ChunkAtEnd : torch::autograd::Function<ChunkAtEnd> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, std::optional<double> scale) {
    const KeyRanges keys = ranges_of(key, query.size(kChunkDim)), values = ranges_of(value, query.size(kChunkDim));
    const auto [before, before_sum] = at::_scaled_dot_product_flash_attention_for_cpu(
        query, keys.before, values.before, 0.0, /*is_causal=*/false, {}, scale);
    const auto [own, own_sum] = at::_scaled_dot_product_flash_attention_for_cpu(query, keys.own, values.own, 0.0,
                                                                                /*is_causal=*/true, {}, scale);
    const at::Tensor sum = at::logaddexp(before_sum, own_sum);
    const at::Tensor output =
        (before * (before_sum - sum).exp().unsqueeze(-1) + own * (own_sum - sum).exp().unsqueeze(-1))
            .to(query.scalar_type());
    context->save_for_backward({query, key, value, output, sum});
    context->saved_data["scale"] = scale;
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &query = saved[0], &output = saved[3], &sum = saved[4];
    const KeyRanges keys = ranges_of(saved[1], query.size(kChunkDim)),
                    values = ranges_of(saved[2], query.size(kChunkDim));
    const auto scale = context->saved_data["scale"].toOptional<double>();
    const at::Tensor gradient = gradients[0].contiguous();
    // With the output and the sum of the whole row, the gradients of both ranges add up.
    const auto [query_before, key_before, value_before] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, query, keys.before, values.before, output, sum, 0.0, /*is_causal=*/false, {}, scale);
    const auto [query_own, key_own, value_own] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, query, keys.own, values.own, output, sum, 0.0, /*is_causal=*/true, {}, scale);
    return {query_before + query_own, at::cat({key_before, key_own}, kChunkDim),
            at::cat({value_before, value_own}, kChunkDim), at::Tensor()};
  }
};

/// The CPU kernel returns the sums of exponentials, and needs elements of a head in sequence.
bool has_cpu_kernel(const at::Tensor& query, const at::Tensor& value, const ContextParallelAttentionOptions& options) {
  return query.is_cpu() && options.dropout_p == 0 && query.size(3) == value.size(3) && query.numel() > 0 &&
         at::globalContext().userEnabledFlashSDP();
}

at::Tensor with_all_heads(const at::Tensor& keys, int64_t heads) {
  return keys.size(1) == heads ? keys : keys.repeat_interleave(heads / keys.size(1), 1);
}

at::Tensor with_heads_in_sequence(const at::Tensor& tensor) {
  return tensor.stride(3) == 1 ? tensor : tensor.contiguous();
}

at::Tensor attend_with(const std::optional<at::Tensor>& mask, const at::Tensor& query, const at::Tensor& key,
                       const at::Tensor& value, bool is_causal, const ContextParallelAttentionOptions& options) {
  const bool repeats = query.is_cpu();
  const at::Tensor keys = repeats ? with_all_heads(key, query.size(1)) : key,
                   values = repeats ? with_all_heads(value, query.size(1)) : value;
  return at::scaled_dot_product_attention(query, keys, values, mask, options.dropout_p, is_causal, options.scale,
                                          /*enable_gqa=*/query.size(1) != keys.size(1));
}

}  // namespace

at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, bool is_causal,
                  const ContextParallelAttentionOptions& options) {
  return attend_with(std::nullopt, query, key, value, is_causal, options);
}

at::Tensor attend_at_end(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const ContextParallelAttentionOptions& options) {
  const int64_t own = query.size(kChunkDim), all = key.size(kChunkDim);
  if (own == all) return attend(query, key, value, /*is_causal=*/true, options);
  if (has_cpu_kernel(query, value, options)) {
    return ChunkAtEnd::apply(with_heads_in_sequence(query), with_heads_in_sequence(with_all_heads(key, query.size(1))),
                             with_heads_in_sequence(with_all_heads(value, query.size(1))), options.scale);
  }
  const at::Tensor mask = at::ones({own, all}, query.options().dtype(at::kBool)).tril_(all - own);
  return attend_with(mask, query, key, value, /*is_causal=*/false, options);
}

}  // namespace accelerate::nn
