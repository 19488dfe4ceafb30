// SPDX-License-Identifier: Apache-2.0
// Models in float64 for tests of sharding, the same on every rank without a random generator.
#pragma once

#include <c10/util/accumulate.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerate/nn/sync_batch_norm.hpp"

namespace sharding_testing {

/// A model of any type, called through a function.
struct AnyNet : torch::nn::Module {
  explicit AnyNet(std::function<torch::Tensor(torch::Tensor)> net_forward) : run(std::move(net_forward)) {}
  torch::Tensor forward(const torch::Tensor& x) { return run(x); }
  std::function<torch::Tensor(torch::Tensor)> run;
};

struct ModelCase {
  std::string name;
  std::function<std::shared_ptr<AnyNet>()> make;
  /// Inputs of a step, [12, ...]; the targets have the shape of the output.
  std::function<torch::Tensor(int64_t step)> inputs;
  bool with_all_optimizers = true;  ///< otherwise with AdamW only, to save time
};

inline torch::Tensor waves(at::IntArrayRef sizes, double start) {
  return torch::sin(torch::arange(c10::multiply_integers(sizes), torch::kDouble) * 0.37 + start).reshape(sizes);
}

inline void fill(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  double start = 0;
  for (auto& parameter : module.parameters()) parameter.copy_(waves(parameter.sizes(), start += 1.7) * 0.3);
}

inline std::shared_ptr<AnyNet> mlp() {
  torch::nn::Sequential layers(torch::nn::Linear(7, 11), torch::nn::Tanh(), torch::nn::Linear(11, 13),
                               torch::nn::Tanh(), torch::nn::Linear(13, 3));
  auto net = std::make_shared<AnyNet>([layers](torch::Tensor x) mutable { return layers->forward(x); });
  net->register_module("layers", layers);
  net->to(torch::kDouble);
  fill(*net);
  return net;
}

/// GroupNorm, because the statistics of BatchNorm depend on the number of ranks.
inline std::shared_ptr<AnyNet> conv_net() {
  torch::nn::Sequential layers(torch::nn::Conv2d(2, 6, 3), torch::nn::GroupNorm(2, 6), torch::nn::ReLU(),
                               torch::nn::Conv2d(6, 4, 3), torch::nn::Flatten(), torch::nn::Linear(4 * 4, 3));
  auto net = std::make_shared<AnyNet>([layers](torch::Tensor x) mutable { return layers->forward(x); });
  net->register_module("layers", layers);
  net->to(torch::kDouble);
  fill(*net);
  return net;
}

/// Not connected, SyncBatchNorm is BatchNorm: one process has the statistics of all ranks. Convolutions have no bias,
/// because its gradient is rounding noise.
inline std::shared_ptr<AnyNet> batch_norm_net() {
  torch::nn::Sequential layers(torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 6, 3).bias(false)),
                               accelerate::nn::SyncBatchNorm(6), torch::nn::ReLU(),
                               torch::nn::Conv2d(torch::nn::Conv2dOptions(6, 4, 3).bias(false)),
                               accelerate::nn::SyncBatchNorm(4), torch::nn::Flatten(), torch::nn::Linear(4 * 4, 3));
  auto net = std::make_shared<AnyNet>([layers](torch::Tensor x) mutable { return layers->forward(x); });
  net->register_module("layers", layers);
  net->to(torch::kDouble);
  fill(*net);
  return net;
}

inline std::shared_ptr<AnyNet> lstm_net() {
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(7, 5).num_layers(2).batch_first(true));
  torch::nn::Linear last(5, 3);
  auto net =
      std::make_shared<AnyNet>([lstm, last](const torch::Tensor& x) mutable { return last(std::get<0>(lstm(x))); });
  net->register_module("lstm", lstm);
  net->register_module("last", last);
  net->to(torch::kDouble);
  fill(*net);
  return net;
}

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width) {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    // Without a bias, because the gradient of a key's bias is rounding noise, which Adam amplifies.
    qkv = register_module("qkv", torch::nn::Linear(torch::nn::LinearOptions(width, 3 * width).bias(false)));
    out = register_module("out", torch::nn::Linear(width, width));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto parts = qkv(norm(x)).chunk(3, -1);
    return x + out(at::scaled_dot_product_attention(parts[0], parts[1], parts[2]));
  }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr};
};
TORCH_MODULE(Block);

/// The output layer is the embedding's weight.
inline std::shared_ptr<AnyNet> tied_transformer() {
  torch::nn::Embedding tokens(10, 6);
  torch::nn::ModuleList blocks(Block(6), Block(6));
  auto net = std::make_shared<AnyNet>([tokens, blocks](const torch::Tensor& ids) mutable {
    auto x = tokens(ids);
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return at::linear(x, tokens->weight);
  });
  net->register_module("tokens", tokens);
  net->register_module("blocks", blocks);
  net->to(torch::kDouble);
  fill(*net);
  return net;
}

inline std::vector<ModelCase> model_cases() {
  return {{"MLP", mlp,
           [](int64_t step) {
             return waves({12, 7}, 0.1 * static_cast<double>(step));
           }},
          {"conv net", conv_net,
           [](int64_t step) {
             return waves({12, 2, 6, 6}, 0.1 * static_cast<double>(step));
           }},
          {"tied transformer", tied_transformer,
           [](int64_t step) {
             return torch::arange(12 * 5).add(step).mul(7).remainder(10).reshape({12, 5});
           }},
          {"conv net with BatchNorm", batch_norm_net,
           [](int64_t step) {
             return waves({12, 2, 6, 6}, 0.1 * static_cast<double>(step));
           },
           /*with_all_optimizers=*/false},
          {"LSTM", lstm_net,
           [](int64_t step) {
             return waves({12, 4, 7}, 0.1 * static_cast<double>(step));
           },
           /*with_all_optimizers=*/false}};
}

/// Weights in channels_last and without elements, a tied and a frozen weight, and buffers.
inline std::shared_ptr<AnyNet> mixed_net() {
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(3, 8, 3));
  torch::nn::BatchNorm2d norm(8);
  torch::nn::Linear head(8, 8);
  auto net = std::make_shared<AnyNet>([conv, norm, head](const torch::Tensor& x) mutable {
    return at::linear(head(norm(conv(x)).mean({2, 3})), head->weight);
  });
  net->register_module("conv", conv);
  net->register_module("norm", norm);
  net->register_module("head", head);
  net->register_parameter("tied", head->weight);
  net->register_parameter("none", torch::empty({0, 4}, torch::kDouble));
  net->to(torch::kDouble);
  fill(*net);
  conv->weight.set_data(conv->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
  conv->bias.set_requires_grad(false);
  return net;
}

inline ModelCase mixed_case() {
  return {"mixed", mixed_net, [](int64_t step) { return waves({12, 3, 5, 5}, 0.2 * static_cast<double>(step)); }};
}

/// Loss of rows [begin, end) of the step's batch.
inline torch::Tensor loss_of(const torch::Tensor& output) { return (output - 0.3).square().mean(); }

struct OptimizerCase {
  std::string name;
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)> make;
};

inline std::vector<OptimizerCase> optimizer_cases() {
  using namespace torch::optim;
  const auto of = [](auto type, auto options) {
    using Type = typename decltype(type)::type;
    return [options](std::vector<torch::Tensor> parameters) -> std::unique_ptr<Optimizer> {
      return std::make_unique<Type>(std::move(parameters), options);
    };
  };
  return {{"AdamW", of(std::type_identity<AdamW>{}, AdamWOptions(1e-2).weight_decay(1e-2))},
          {"Adam with amsgrad", of(std::type_identity<Adam>{}, AdamOptions(1e-2).amsgrad(true))},
          {"SGD", of(std::type_identity<SGD>{}, SGDOptions(1e-2))},
          {"SGD with momentum", of(std::type_identity<SGD>{}, SGDOptions(1e-2).momentum(0.9).weight_decay(1e-3))},
          {"Adagrad", of(std::type_identity<Adagrad>{}, AdagradOptions(1e-2))},
          {"RMSprop", of(std::type_identity<RMSprop>{}, RMSpropOptions(1e-2).momentum(0.9).centered(true).eps(1e-3))}};
}

inline std::vector<OptimizerCase> optimizer_cases(const ModelCase& of) {
  auto all = optimizer_cases();
  if (!of.with_all_optimizers) all.resize(1);
  return all;
}

/// Without repetitions: LibTorch lists a tied parameter once per name.
inline std::vector<torch::Tensor> once(const std::vector<torch::Tensor>& parameters) {
  std::vector<torch::Tensor> list;
  for (const auto& parameter : parameters) {
    const auto is_same = [&](const torch::Tensor& other) { return other.is_same(parameter); };
    if (std::ranges::none_of(list, is_same)) list.push_back(parameter);
  }
  return list;
}

/// Infinity for NaN, which std::max() would drop.
inline double largest_difference(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].numel() == 0) continue;
    const double difference = (a[i] - b[i]).detach().abs().max().item<double>();
    largest = std::max(largest, std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference);
  }
  return largest;
}

/// Number of elements of all state tensors of this rank.
inline int64_t state_elements(torch::optim::Optimizer& optimizer, const std::vector<torch::Tensor>& parameters) {
  int64_t elements = 0;
  for (const auto& parameter : parameters) {
    const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) continue;
    const auto& state = static_cast<torch::optim::AdamWParamState&>(*found->second);
    elements += state.exp_avg().numel() + state.exp_avg_sq().numel();
  }
  return elements;
}

}  // namespace sharding_testing
