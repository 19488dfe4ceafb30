// SPDX-License-Identifier: Apache-2.0
// Common code of the nn tests: compares ranks with one process on the whole batch, and counts operations.
#pragma once

#include "tests/gradient/support.hpp"
//
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/gradient/gradient_reducer.hpp"
#include "accelerate/nn/activation_checkpoint.hpp"
#include "accelerate/nn/convert.hpp"
#include "accelerate/nn/sync_batch_norm.hpp"
#include "accelerate/nn/synchronized.hpp"

namespace nn_testing {

using accelerate::comm::Group;
using accelerate::comm::run_threads;
using accelerate::gradient::run_backward;
using accelerate::nn::SyncBatchNorm;
using accelerate::nn::SyncBatchNormImpl;
using gradient_testing::bit_equal;
using gradient_testing::kTimeout;
using gradient_testing::numbers;

/// Number of the operation that created the duplicate, which is part of its name.
inline int64_t number_of(const Group& duplicate) {
  const std::string name = duplicate.process_group()->getGroupName();
  return std::stoll(name.substr(name.rfind('/') + 1));
}

/// Number of operations of the group while work runs; 0 without a connection.
template <typename Work>
int64_t operations_in(const Group& group, const Work& work) {
  const Group before = group.duplicate();
  work();
  const Group after = group.duplicate();
  group.barrier();  // gloo: no rank may close a connection that another rank is still establishing
  return group.process_group() ? number_of(after) - number_of(before) - 1 : 0;
}

inline bool close(const at::Tensor& seen, const at::Tensor& expected, double tolerance = 1e-12) {
  return seen.sizes() == expected.sizes() && torch::allclose(seen, expected, tolerance, tolerance);
}

/// Rank r's rows of a batch of all ranks: r + 2 of them, or none on the last of several.
struct Rows {
  Rows(const Group& group, bool last_is_empty) {
    for (int64_t rank = 0; rank < group.size(); ++rank) {
      const bool empty = last_is_empty && rank > 0 && rank == group.size() - 1;
      if (rank == group.rank()) first = whole;
      if (rank == group.rank()) count = empty ? 0 : rank + 2;
      whole += empty ? 0 : rank + 2;
    }
  }
  [[nodiscard]] at::Tensor of(const at::Tensor& batch) const { return batch.narrow(0, first, count); }
  int64_t first = 0, count = 0, whole = 0;
};

/// A LibTorch layer with weights and biases that differ from the defaults.
template <typename Stock>
Stock stock_layer(const torch::nn::BatchNormOptions& options) {
  Stock stock(options);
  stock->to(at::kDouble);
  const torch::NoGradGuard no_grad;
  if (options.affine()) stock->weight.copy_(numbers({options.num_features()}, 3));
  if (options.affine()) stock->bias.copy_(numbers({options.num_features()}, 4));
  return stock;
}

/// The equivalent of the LibTorch layer that normalises over the group.
template <typename Stock>
SyncBatchNorm twin_of(const Stock& stock, const Group& group) {
  Stock copy(std::dynamic_pointer_cast<typename Stock::ContainedType>(stock->clone()));
  SyncBatchNorm twin(accelerate::nn::synchronised(*copy));
  twin->connect(group.duplicate());
  return twin;
}

struct NormCase {
  torch::nn::BatchNormOptions options = torch::nn::BatchNormOptions(3);
  std::vector<int64_t> inner{};  ///< dimensions after the channels
  bool last_is_empty = false;
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
};

/// Runs three steps and an evaluation: outputs, gradients of input, weight and bias, and running statistics must equal
/// those of one process with the whole batch, within 1e-12 in float64.
template <typename Stock>
void check_like_one_process(const Group& group, const NormCase& one) {
  const Rows rows(group, one.last_is_empty);
  Stock stock = stock_layer<Stock>(one.options);
  SyncBatchNorm layer = twin_of(stock, group);
  std::vector<int64_t> shape{rows.whole, one.options.num_features()};
  shape.insert(shape.end(), one.inner.begin(), one.inner.end());
  for (int64_t step = 0; step < 3; ++step) {
    CAPTURE(step);
    const at::Tensor batch = numbers(shape, 20 + step) * 3 + 40;
    const at::Tensor factors = numbers(shape, 30 + step);
    const at::Tensor whole = batch.clone().requires_grad_(true);
    const at::Tensor mine = rows.of(batch).clone().contiguous(one.format).requires_grad_(true);
    const at::Tensor expected = stock(whole);
    const at::Tensor seen = layer(mine);
    (expected * factors).sum().backward();
    (seen * rows.of(factors)).sum().backward();
    CHECK(close(seen, rows.of(expected)));
    CHECK(seen.is_contiguous(one.format));
    CHECK(close(mine.grad(), rows.of(whole.grad())));
    if (one.options.affine()) {
      const at::Tensor sums = torch::stack({layer->weight.grad(), layer->bias.grad()});
      group.all_reduce(sums);
      CHECK(close(sums, torch::stack({stock->weight.grad(), stock->bias.grad()})));
      layer->zero_grad();
      stock->zero_grad();
    }
    if (!one.options.track_running_stats()) continue;
    CHECK(close(layer->running_mean, stock->running_mean));
    CHECK(close(layer->running_var, stock->running_var));
    CHECK(layer->num_batches_tracked.item<int64_t>() == step + 1);
    CHECK(bit_equal(group, {layer->running_mean, layer->running_var}));
  }
  layer->eval();
  stock->eval();
  const at::Tensor batch = numbers(shape, 50);
  if (one.options.track_running_stats()) CHECK(close(layer(batch), stock(batch)));
}

template <typename Stock>
void check_all_options(const Group& group, const std::vector<int64_t>& inner) {
  using Options = torch::nn::BatchNormOptions;
  check_like_one_process<Stock>(group, {.inner = inner});
  check_like_one_process<Stock>(group, {.inner = inner, .last_is_empty = true});
  check_like_one_process<Stock>(group, {.options = Options(5).affine(false).eps(1e-3).momentum(0.3), .inner = inner});
  check_like_one_process<Stock>(group, {.options = Options(2).momentum(std::nullopt), .inner = inner});
  check_like_one_process<Stock>(group, {.options = Options(4).track_running_stats(false), .inner = inner});
}

/// Alternating layers and SyncBatchNorms: with small buckets, gradients are reduced while backward normalises.
struct NormedNetImpl : torch::nn::Module {
  explicit NormedNetImpl(bool checkpointed = false) : in_parts(checkpointed) {
    for (int64_t i = 0; i < 4; ++i) {
      lines.push_back(register_module("line" + std::to_string(i), torch::nn::Linear(4, 4)));
      norms.push_back(register_module("norm" + std::to_string(i), SyncBatchNorm(4)));
    }
    to(at::kDouble);
  }
  at::Tensor part(size_t i, const at::Tensor& x) { return torch::tanh(norms[i](lines[i](x))); }
  at::Tensor forward(at::Tensor x) {
    for (size_t i = 0; i < lines.size(); ++i) {
      x = in_parts ? accelerate::nn::checkpoint([this, i](const at::Tensor& in) { return part(i, in); }, x)
                   : part(i, x);
    }
    return x;
  }
  std::vector<torch::nn::Linear> lines;
  std::vector<SyncBatchNorm> norms;
  bool in_parts;
};
TORCH_MODULE(NormedNet);

/// Six steps of SGD on uneven parts with gradients averaged during backward: parameters and buffers equal those of one
/// process that computes on the whole batch.
inline void check_trains_like_one_process(const Group& group, bool checkpointed) {
  using accelerate::gradient::GradientReducer;
  const Rows rows(group, false);
  auto net = gradient_testing::built([&] { return NormedNet(checkpointed); });
  auto alone = gradient_testing::built([] { return NormedNet(); });
  accelerate::nn::connect_sync_batchnorm(*net, group);
  GradientReducer gradient_reducer(group.duplicate(), gradient_testing::named(net), gradient_testing::small_buckets());
  torch::optim::SGD steps(net->parameters(), 0.1);
  torch::optim::SGD alone_steps(alone->parameters(), 0.1);
  for (int64_t step = 0; step < 6; ++step) {
    CAPTURE(step);
    const at::Tensor batch = numbers({rows.whole, 4}, step);
    gradient_reducer.zero_all();
    alone_steps.zero_grad();
    // The gradient_reducer takes the mean over ranks of sums over rows.
    const double share = static_cast<double>(group.size()) / static_cast<double>(rows.whole);
    (net(rows.of(batch)).pow(2).sum() * share).backward();
    (alone(batch).pow(2).sum() / static_cast<double>(rows.whole)).backward();
    steps.step();
    alone_steps.step();
    const auto expected = alone->named_parameters();
    for (const auto& item : net->named_parameters()) CHECK(close(item.value(), expected[item.key()], 1e-11));
    const auto buffers = alone->named_buffers();
    for (const auto& item : net->named_buffers()) CHECK(close(item.value(), buffers[item.key()], 1e-11));
  }
  CHECK(bit_equal(group, net->parameters()));
}

}  // namespace nn_testing
