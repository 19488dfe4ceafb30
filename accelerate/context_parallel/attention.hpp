// SPDX-License-Identifier: Apache-2.0
// Attention over a sequence that is divided over the ranks of a context parallel group.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "accelerate/comm/group.hpp"

namespace accelerate::nn {

struct ContextParallelAttentionOptions {
  /// If true, a token attends to itself and to the tokens before it in the whole sequence. If false, to all tokens.
  bool is_causal = false;
  /// Factor of the scores. If unset, 1 / sqrt(head size).
  std::optional<double> scale{};
  /// Probability of a zero in the attention weights. Each rank draws its masks from its default generator.
  double dropout_p = 0.0;
};

/// Returns this rank's part of scaled_dot_product_attention() over the whole sequence.
///
/// The ranks have the parts of split_sequence(). Forward gathers the keys and values of all ranks in one message.
/// Backward adds up their gradients in one reduce-scatter. Until backward a rank keeps keys and values of the whole
/// sequence, but queries, scores and outputs of its own tokens. Under autocast the message has autocast's dtype.
///
/// Collective, forward and backward: all ranks of the group call it equally often and in the same order, with the same
/// shapes and dtypes. In a group of one rank it is scaled_dot_product_attention().
///
/// \param query    [batch, heads, own tokens, head size]; any strides.
/// \param key      [batch, key heads, own tokens, head size]. The number of heads must be divisible by that of key
///                 heads, as for grouped-query attention. Without is_causal the number of tokens may differ from
///                 query's.
/// \param value    As key; the head size may differ.
/// \returns [batch, heads, own tokens, head size of value].
/// \throws Error (usage) if the shapes or dtypes do not fit together, or if the number of own tokens is odd;
///         Error (peer) if a rank is lost or late, or if the shapes of the ranks differ, from the call or from
///         backward.
[[nodiscard]] at::Tensor context_parallel_attention(const comm::Group& group, const at::Tensor& query,
                                                    const at::Tensor& key, const at::Tensor& value,
                                                    const ContextParallelAttentionOptions& options = {});

}  // namespace accelerate::nn
