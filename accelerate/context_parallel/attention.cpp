// SPDX-License-Identifier: Apache-2.0
#include "accelerate/context_parallel/attention.hpp"

#include <ATen/autocast_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <c10/util/StringUtil.h>

#include <string_view>
#include <utility>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/context_parallel/causal_chunk.hpp"
#include "accelerate/context_parallel/gather.hpp"

namespace accelerate::nn {
namespace {

constexpr std::string_view kAttentionCall = "context_parallel_attention";
constexpr int64_t kTokenDim = 2;

template <typename... Args>
[[noreturn]] void refuse_tokens(const comm::Group& group, fmt::format_string<Args...> format, Args&&... args) {
  base::fail(ErrorKind::usage, group.place(), kAttentionCall, format, std::forward<Args>(args)...);
}

std::string sizes_text(const at::Tensor& tensor) { return c10::Join(", ", tensor.sizes()); }

/// Shapes are checked before the collective, because a rank that fails alone blocks the others until the timeout.
void check_shapes(const comm::Group& group, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  bool is_causal) {
  const std::pair<std::string_view, const at::Tensor&> all[] = {{"query", query}, {"key", key}, {"value", value}};
  for (const auto& [name, tensor] : all) {
    if (tensor.dim() == 4) continue;
    refuse_tokens(group, "{} is [{}], must be [batch, heads, own tokens, head size]", name, sizes_text(tensor));
  }
  if (key.sizes().slice(0, 3) != value.sizes().slice(0, 3)) {
    refuse_tokens(group, "key is [{}] and value [{}]; only the head size may differ", sizes_text(key),
                  sizes_text(value));
  }
  if (query.size(0) != key.size(0) || query.size(3) != key.size(3)) {
    refuse_tokens(group, "query is [{}] and key [{}]; batch and head size must be equal", sizes_text(query),
                  sizes_text(key));
  }
  if (key.size(1) == 0 || query.size(1) % key.size(1) != 0) {
    refuse_tokens(group, "query has {} heads, must be divisible by the {} heads of key", query.size(1), key.size(1));
  }
  if (is_causal && query.size(kTokenDim) != key.size(kTokenDim)) {
    refuse_tokens(group, "query has {} tokens and key {}; with is_causal they must be equal", query.size(kTokenDim),
                  key.size(kTokenDim));
  }
  if (query.scalar_type() != key.scalar_type() || key.scalar_type() != value.scalar_type()) {
    refuse_tokens(group, "query is {}, key {} and value {}; the dtypes must be equal",
                  c10::toString(query.scalar_type()), c10::toString(key.scalar_type()),
                  c10::toString(value.scalar_type()));
  }
  if (group.size() > 1) check_two_chunks(kAttentionCall, "key", key, kTokenDim, group);
}

/// Autocast would convert whole keys and values; their parts are smaller.
at::Tensor with_autocast_dtype(const at::Tensor& tensor) {
  const at::DeviceType device = tensor.device().type();
  const bool converts = at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device) &&
                        tensor.is_floating_point() && tensor.scalar_type() != at::kDouble;
  return converts ? tensor.to(at::autocast::get_autocast_dtype(device)) : tensor;
}

/// Returns keys and values of the whole sequence.
std::pair<at::Tensor, at::Tensor> gather_keys_and_values(const comm::Group& group, const at::Tensor& key,
                                                         const at::Tensor& value) {
  std::vector<at::Tensor> parts;
  if (key.sizes() == value.sizes()) {
    // Messages about a rank with other sizes then contain the shape of a key.
    parts = gather_of_sequence(kAttentionCall, at::stack({key, value}), group).unbind(1);
  } else {
    const at::Tensor both = at::cat({key.reshape({-1}), value.reshape({-1})});
    parts = gather_of_sequence(kAttentionCall, both, group).split_with_sizes({key.numel(), value.numel()}, 1);
    parts[0] = parts[0].unflatten(1, key.sizes());
    parts[1] = parts[1].unflatten(1, value.sizes());
  }
  return {in_token_order(parts[0], kTokenDim), in_token_order(parts[1], kTokenDim)};
}

/// Attention of the chunk with the given number in the sequence, counted in chunks.
at::Tensor attend_in_sequence(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values, int64_t number,
                              const ContextParallelAttentionOptions& options) {
  const int64_t end = (number + 1) * query.size(kTokenDim);
  return attend_at_end(query, keys.narrow(kTokenDim, 0, end), values.narrow(kTokenDim, 0, end), options);
}

}  // namespace

at::Tensor context_parallel_attention(const comm::Group& group, const at::Tensor& given_query,
                                      const at::Tensor& given_key, const at::Tensor& given_value,
                                      const ContextParallelAttentionOptions& options) {
  const at::Tensor query = with_autocast_dtype(given_query), key = with_autocast_dtype(given_key),
                   value = with_autocast_dtype(given_value);
  check_shapes(group, query, key, value, options.is_causal);
  if (group.size() == 1) return attend(query, key, value, options.is_causal, options);
  const auto [keys, values] = gather_keys_and_values(group, key, value);
  if (!options.is_causal) return attend(query, keys, values, /*is_causal=*/false, options);
  const int64_t rank = group.rank(), last = 2 * group.size() - 1 - rank;
  const std::vector<at::Tensor> queries = query.chunk(2, kTokenDim);
  return at::cat({attend_in_sequence(queries[0], keys, values, rank, options),
                  attend_in_sequence(queries[1], keys, values, last, options)},
                 kTokenDim);
}

}  // namespace accelerate::nn
