// SPDX-License-Identifier: Apache-2.0
// Attention over a divided sequence against one process. The including file defines with_attention_ranks().
#pragma once

#include "tests/tensor_parallel/support.hpp"
//
#include <fmt/format.h>

#include <tuple>
#include <vector>

#include "accelerate/context_parallel/attention.hpp"
#include "accelerate/context_parallel/sequence.hpp"
#include "accelerate/nn/activation_checkpoint.hpp"
#include "accelerate/precision/autocast.hpp"

namespace context_attention_cases {

using namespace tensor_parallel_testing;

constexpr int64_t kAttentionTokens = 48;

/// Query, key, value and the gradient of the output: whole sequences, equal on all ranks.
struct Whole {
  at::Tensor query, key, value, gradient;
};

/// \param key_heads   2 for grouped-query attention.
/// \param value_size  Features of a value.
inline Whole whole_of(at::ScalarType dtype, int64_t key_heads = 4, int64_t value_size = 8) {
  // As from a projection: [batch, tokens, heads, features], transposed.
  const auto made = [&](int64_t heads, int64_t features, uint64_t seed) {
    return numbers({2, kAttentionTokens, heads, features}, seed).to(dtype).transpose(1, 2);
  };
  return {made(4, 8, 1), made(key_heads, 8, 2), made(key_heads, value_size, 3), made(4, value_size, 4)};
}

struct Result {
  at::Tensor output;
  std::vector<at::Tensor> gradients;
};

/// Runs forward and backward of `attend` on leaves with these values.
template <typename Attend>
Result run(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& gradient,
           const Attend& attend) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& each : {query, key, value}) leaves.push_back(each.detach().requires_grad_());
  const at::Tensor output = attend(leaves[0], leaves[1], leaves[2]);
  output.backward(gradient);
  Result result{output.detach(), {}};
  for (const at::Tensor& leaf : leaves) result.gradients.push_back(leaf.grad());
  return result;
}

inline Result undivided(const Whole& whole, const ContextParallelAttentionOptions& options) {
  return run(whole.query, whole.key, whole.value, whole.gradient, [&](const auto& q, const auto& k, const auto& v) {
    return at::scaled_dot_product_attention(q, k, v, {}, 0.0, options.is_causal, options.scale, q.size(1) != k.size(1));
  });
}

inline Result divided(const Group& group, const Whole& whole, const ContextParallelAttentionOptions& options) {
  const auto part = [&](const at::Tensor& tensor) { return split_sequence(group, tensor, 2); };
  return run(
      part(whole.query), part(whole.key), part(whole.value), part(whole.gradient),
      [&](const auto& q, const auto& k, const auto& v) { return context_parallel_attention(group, q, k, v, options); });
}

inline void check_same(const Group& group, const Result& own, const Result& whole, double tolerance) {
  const auto same = [&](const at::Tensor& part, const at::Tensor& expected) {
    const at::Tensor other = split_sequence(group, expected, 2);
    return part.scalar_type() == other.scalar_type() && close(part.to(at::kDouble), other.to(at::kDouble), tolerance);
  };
  CHECK(same(own.output, whole.output));
  for (size_t i = 0; i < own.gradients.size(); ++i) {
    CAPTURE(i);
    CHECK(same(own.gradients[i], whole.gradients[i]));
  }
}

}  // namespace context_attention_cases

TEST_CASE("the parts of attention and its gradients are those of one process") {
  using namespace context_attention_cases;
  with_attention_ranks([](const Group& group) {
    for (const bool is_causal : {false, true}) {
      for (const std::optional<double> scale : {std::optional<double>(), std::optional<double>(0.7)}) {
        CAPTURE(is_causal);
        const ContextParallelAttentionOptions options{.is_causal = is_causal, .scale = scale};
        for (const Whole& whole : {whole_of(at::kDouble), whole_of(at::kDouble, 2), whole_of(at::kDouble, 4, 6)}) {
          check_same(group, divided(group, whole, options), undivided(whole, options), 1e-12);
        }
        const Whole single = whole_of(at::kFloat);
        check_same(group, divided(group, single, options), undivided(single, options), 1e-5);
      }
    }
  });
}

TEST_CASE("attention in 16 bits is that of one process up to rounding") {
  using namespace context_attention_cases;
  with_attention_ranks([](const Group& group) {
    for (const bool is_causal : {false, true}) {
      CAPTURE(is_causal);
      const Whole bf16 = whole_of(at::kBFloat16), fp16 = whole_of(at::kHalf);
      check_same(group, divided(group, bf16, {.is_causal = is_causal}), undivided(bf16, {.is_causal = is_causal}),
                 4e-2);
      check_same(group, divided(group, fp16, {.is_causal = is_causal}), undivided(fp16, {.is_causal = is_causal}),
                 5e-3);
    }
  });
}

TEST_CASE("under autocast the output has autocast's dtype, and gradients that of the inputs") {
  using namespace context_attention_cases;
  with_attention_ranks([](const Group& group) {
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      const Whole whole = whole_of(at::kFloat);
      const auto cast = [&](const auto& attend) {
        return [&attend, dtype](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
          const accelerate::precision::Autocast region(
              accelerate::precision::AutocastRegion{.device = at::kCPU, .dtype = dtype});
          return attend(q, k, v);
        };
      };
      const auto of_one = [](const auto& q, const auto& k, const auto& v) {
        return at::scaled_dot_product_attention(q, k, v, {}, 0.0, true);
      };
      const auto of_group = [&](const auto& q, const auto& k, const auto& v) {
        return context_parallel_attention(group, q, k, v, {.is_causal = true});
      };
      const auto part = [&](const at::Tensor& tensor) { return split_sequence(group, tensor, 2); };
      const Result expected = run(whole.query, whole.key, whole.value, whole.gradient.to(dtype), cast(of_one));
      const Result own =
          run(part(whole.query), part(whole.key), part(whole.value), part(whole.gradient).to(dtype), cast(of_group));
      CHECK((own.output.scalar_type() == dtype));
      CHECK((own.gradients[0].scalar_type() == at::kFloat));
      check_same(group, own, expected, 4e-2);
    }
  });
}

TEST_CASE("queries of another number of tokens attend to the whole sequence of keys") {
  using namespace context_attention_cases;
  with_attention_ranks([](const Group& group) {
    Whole whole = whole_of(at::kDouble);
    whole.query = whole.query.slice(2, 0, kAttentionTokens / 2);
    whole.gradient = whole.gradient.slice(2, 0, kAttentionTokens / 2);
    check_same(group, divided(group, whole, {}), undivided(whole, {}), 1e-12);
  });
}

TEST_CASE("nn::checkpoint recomputes attention and its exchange") {
  using namespace context_attention_cases;
  with_attention_ranks([](const Group& group) {
    const Whole whole = whole_of(at::kDouble);
    const auto part = [&](const at::Tensor& tensor) { return split_sequence(group, tensor, 2); };
    const Result own = run(part(whole.query), part(whole.key), part(whole.value), part(whole.gradient),
                           [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
                             return checkpoint(
                                 [&group](const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
                                   return context_parallel_attention(group, query, key, value, {.is_causal = true});
                                 },
                                 q, k, v);
                           });
    check_same(group, own, undivided(whole, {.is_causal = true}), 1e-12);
  });
}

TEST_CASE("a rank with other shapes is named with both shapes") {
  using namespace context_attention_cases;
  with_attention_ranks([](const Group& group) {
    if (group.size() == 1) return;
    const Group broken = group.duplicate();
    const bool is_first = group.rank() == 0;
    const at::Tensor x = torch::ones({1, 2, is_first ? 2 : 4, 8});
    const auto text =
        refused([&] { std::ignore = context_parallel_attention(broken, x, x, x); }, accelerate::ErrorKind::peer);
    CHECK(text == fmt::format("context_parallel_attention: the parts of the sequence are not put together: this rank "
                              "sends [2, 1, 2, {}, 8] float32, rank {} sends [2, 1, 2, {}, 8] float32; they must be "
                              "equal.",
                              is_first ? 2 : 4, is_first ? 1 : 0, is_first ? 4 : 2));
    group.barrier();
  });
}

TEST_CASE("dropout in attention keeps the expected value") {
  using namespace context_attention_cases;
  with_attention_ranks([](const Group& group) {
    const at::Tensor ones = torch::ones({8, 4, 4, 8}, at::kDouble);
    const at::Tensor output = context_parallel_attention(group, ones, ones, ones, {.dropout_p = 0.25});
    CHECK(output.mean().item<double>() == doctest::Approx(1).epsilon(0.2));
    CHECK_FALSE(output.allclose(ones));
    const at::Tensor causal =
        context_parallel_attention(group, ones, ones, ones, {.is_causal = true, .dropout_p = 0.25});
    CHECK(causal.mean().item<double>() == doctest::Approx(1).epsilon(0.2));
  });
}
