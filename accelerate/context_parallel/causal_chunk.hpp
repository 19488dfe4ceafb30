// SPDX-License-Identifier: Apache-2.0
// Private: causal attention of one chunk of a sequence.
#pragma once

#include <ATen/core/Tensor.h>

#include "accelerate/context_parallel/attention.hpp"

namespace accelerate::nn {

/// Returns the attention of the last n tokens to all keys up to themselves.
///
/// On the CPU, without dropout and with heads of equal size, no mask and no scores are kept for backward. Otherwise a
/// mask [n, tokens] is passed to scaled_dot_product_attention().
///
/// \param query  [batch, heads, n, head size].
/// \param key    [batch, key heads, tokens, head size], tokens >= n.
/// \param value  [batch, key heads, tokens, value size].
at::Tensor attend_at_end(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const ContextParallelAttentionOptions& options);

/// Returns scaled_dot_product_attention() without a mask. On the CPU the keys of grouped queries are repeated, because
/// LibTorch keeps all scores otherwise.
at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, bool is_causal,
                  const ContextParallelAttentionOptions& options);

}  // namespace accelerate::nn
