// SPDX-License-Identifier: Apache-2.0
// Common code of the tensor parallel tests: the same model with stock and with split layers, on any kind of ranks.
#pragma once

#include "tests/testing.hpp"
//
#include <ATen/CPUGeneratorImpl.h>

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/comm/group.hpp"
#include "accelerate/tensor_parallel/attention.hpp"
#include "accelerate/tensor_parallel/conv.hpp"
#include "accelerate/tensor_parallel/cross_entropy.hpp"
#include "accelerate/tensor_parallel/embedding.hpp"
#include "accelerate/tensor_parallel/group_functions.hpp"
#include "accelerate/tensor_parallel/layer_norm.hpp"
#include "accelerate/tensor_parallel/linear.hpp"
#include "accelerate/tensor_parallel/whole_state.hpp"

namespace tensor_parallel_testing {

using namespace accelerate::nn;
using accelerate::comm::Group;

/// One mutex for models of every type.
inline std::mutex one_at_a_time;

/// Ranks as threads share the global generator, so models are built one after another.
template <typename Make>
auto seeded(const Make& make, uint64_t seed = 11) {
  const std::lock_guard lock(one_at_a_time);
  torch::manual_seed(seed);
  return make();
}

/// The same numbers on every rank.
inline at::Tensor numbers(at::IntArrayRef shape, uint64_t seed, at::ScalarType dtype = at::kDouble) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed + 1000);
  return torch::randn(shape, generator, torch::dtype(dtype));
}

inline at::Tensor tokens(at::IntArrayRef shape, uint64_t seed, int64_t vocabulary) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed + 1000);
  return torch::randint(vocabulary, shape, generator, torch::dtype(at::kLong));
}

inline bool close(const at::Tensor& seen, const at::Tensor& expected, double tolerance = 1e-12) {
  return seen.sizes() == expected.sizes() && torch::allclose(seen, expected, tolerance, tolerance);
}

/// Text of an Error after its place, or "no error".
inline std::string refused(const std::function<void()>& call,
                           accelerate::ErrorKind kind = accelerate::ErrorKind::usage) {
  try {
    call();
  } catch (const accelerate::Error& error) {
    CHECK((error.kind() == kind));
    const std::string text = error.what();
    const size_t end = text.find("] ");
    return end == std::string::npos || text[0] != '[' ? text : text.substr(end + 2);
  }
  return "no error";
}

/// Gradients of a model as it would have them without splits. Collective.
template <typename Module>
StateDict whole_gradients(const Module& module) {
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> values;
  for (auto& parameter : module->parameters()) {
    values.push_back(parameter.detach().clone());
    parameter.copy_(parameter.grad());
  }
  const StateDict gradients = whole_state_dict(*module);
  size_t i = 0;
  for (auto& parameter : module->parameters()) parameter.copy_(values[i++]);
  return gradients;
}

/// Compares all parameters, or gradients, with the stock model's. Collective.
template <typename Split, typename Stock>
void check_same_state(const Split& split, const Stock& stock, double tolerance = 1e-12) {
  const StateDict whole = whole_state_dict(*split);
  for (const auto& item : stock->named_parameters()) {
    CAPTURE(item.key());
    CHECK(close(whole[item.key()], item.value().detach(), tolerance));
  }
}
template <typename Split, typename Stock>
void check_same_gradients(const Split& split, const Stock& stock, double tolerance = 1e-12) {
  const StateDict whole = whole_gradients(split);
  for (const auto& item : stock->named_parameters()) {
    CAPTURE(item.key());
    CHECK(close(whole[item.key()], item.value().grad(), tolerance));
  }
}

/// Twenty steps of AdamW on both models: equal losses, and equal parameters afterwards.
template <typename Split, typename Stock>
void train_both(const Split& split, const Stock& stock, const auto& split_loss, const auto& stock_loss,
                double tolerance = 1e-12) {
  torch::optim::AdamW own(split->parameters(), torch::optim::AdamWOptions(1e-2));
  torch::optim::AdamW reference(stock->parameters(), torch::optim::AdamWOptions(1e-2));
  for (uint64_t step = 0; step < 20; ++step) {
    CAPTURE(step);
    own.zero_grad();
    reference.zero_grad();
    const at::Tensor seen = split_loss(step), expected = stock_loss(step);
    seen.backward();
    expected.backward();
    CHECK(close(seen, expected, tolerance));
    if (step == 0) check_same_gradients(split, stock, tolerance);
    own.step();
    reference.step();
  }
  check_same_state(split, stock, 10 * tolerance);
}

// Models with stock layers, and the same with split layers.

struct StockMlpImpl : torch::nn::Module {
  StockMlpImpl() { to(at::kDouble); }
  at::Tensor forward(const at::Tensor& x) { return down(torch::gelu(up(x))); }
  torch::nn::Linear up = register_module("up", torch::nn::Linear(6, 8));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(8, 5));
};
TORCH_MODULE(StockMlp);

struct SplitMlpImpl : torch::nn::Module {
  explicit SplitMlpImpl(const Group& group) {
    up = register_module("up", ColumnParallelLinear(6, 8, group));
    down = register_module("down", RowParallelLinear(8, 5, group));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return down(torch::gelu(up(x))); }
  ColumnParallelLinear up{nullptr};
  RowParallelLinear down{nullptr};
};
TORCH_MODULE(SplitMlp);

struct StockConvNetImpl : torch::nn::Module {
  StockConvNetImpl() { to(at::kDouble); }
  at::Tensor forward(const at::Tensor& x) { return second(torch::tanh(first(x))); }
  torch::nn::Conv2d first = register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)));
  torch::nn::Conv2d second = register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 2, 3).stride(2)));
};
TORCH_MODULE(StockConvNet);

struct SplitConvNetImpl : torch::nn::Module {
  explicit SplitConvNetImpl(const Group& group) {
    first = register_module("first", ColumnParallelConv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1), group));
    second = register_module("second", RowParallelConv2d(torch::nn::Conv2dOptions(8, 2, 3).stride(2), group));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::tanh(first(x))); }
  ColumnParallelConv2d first{nullptr};
  RowParallelConv2d second{nullptr};
};
TORCH_MODULE(SplitConvNet);

/// A block of a language model with a tied embedding. The projections of attention have no bias, because the gradient
/// of a key's bias is rounding noise, which Adam amplifies.
struct StockGptImpl : torch::nn::Module {
  StockGptImpl() { to(at::kDouble); }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = embed(ids);
    const at::Tensor y = norm(x);
    x = x + std::get<0>(attention(y, y, y));
    return x + down(torch::gelu(up(last_norm(x))));
  }
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& target) {
    return torch::cross_entropy_loss(torch::linear(forward(ids), embed->weight).flatten(0, 1), target.flatten());
  }
  torch::nn::Embedding embed = register_module("embed", torch::nn::Embedding(12, 8));
  torch::nn::LayerNorm norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
  torch::nn::MultiheadAttention attention = register_module(
      "attention", torch::nn::MultiheadAttention(torch::nn::MultiheadAttentionOptions(8, 4).bias(false)));
  torch::nn::LayerNorm last_norm = register_module("last_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
  torch::nn::Linear up = register_module("up", torch::nn::Linear(8, 16));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(16, 8));
};
TORCH_MODULE(StockGpt);

/// With sequence parallelism, x is split along the sequence (dimension 0) between the layers.
struct SplitGptImpl : torch::nn::Module {
  explicit SplitGptImpl(const Group& the_group, bool sequence = false) : group(the_group), is_sequence(sequence) {
    const std::optional<int64_t> dim = sequence ? std::optional<int64_t>(0) : std::nullopt;
    const Group norm_group = sequence ? group : Group();
    embed =
        register_module("embed", VocabParallelEmbedding(VocabParallelEmbeddingOptions(12, 8).sequence_dim(dim), group));
    norm = register_module("norm", SequenceParallelLayerNorm(torch::nn::LayerNormOptions({8}), norm_group));
    attention = register_module(
        "attention", ParallelMultiheadAttention(
                         ParallelMultiheadAttentionOptions(8, 4).bias(false).sequence_parallel(sequence), group));
    last_norm = register_module("last_norm", SequenceParallelLayerNorm(torch::nn::LayerNormOptions({8}), norm_group));
    up = register_module("up", ColumnParallelLinear(ColumnParallelLinearOptions(8, 16).sequence_dim(dim), group));
    down = register_module("down", RowParallelLinear(RowParallelLinearOptions(16, 8).sequence_dim(dim), group));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = embed(ids);
    const at::Tensor y = norm(x);
    x = x + attention(y, y, y);
    x = x + down(torch::gelu(up(last_norm(x))));
    return is_sequence ? gather_from_group(x, 0, group) : x;
  }
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& target) {
    return vocab_parallel_linear_cross_entropy(forward(ids), embed->weight, target, group);
  }
  Group group;
  bool is_sequence;
  VocabParallelEmbedding embed{nullptr};
  SequenceParallelLayerNorm norm{nullptr}, last_norm{nullptr};
  ParallelMultiheadAttention attention{nullptr};
  ColumnParallelLinear up{nullptr};
  RowParallelLinear down{nullptr};
};
TORCH_MODULE(SplitGpt);

}  // namespace tensor_parallel_testing
