// SPDX-License-Identifier: Apache-2.0
// The networks of the benches; bench/peers has the same in Python.
#pragma once

#include <accelerate/accelerate.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace bench {

/// Linear layers of the given sizes with ReLU between them.
struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(const std::vector<int64_t>& sizes) {
    for (size_t i = 0; i + 1 < sizes.size(); ++i) {
      layers.push_back(register_module("linear" + std::to_string(i), torch::nn::Linear(sizes[i], sizes[i + 1])));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (size_t i = 0; i + 1 < layers.size(); ++i) x = torch::relu(layers[i](x));
    return layers.back()(x);
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Mlp);

/// PyTorch's MNIST example: [N, 1, 28, 28] -> log-probabilities [N, 10].
struct BasicNetImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(conv2(torch::relu(conv1(x)))), 2);
    x = torch::flatten(torch::dropout(x, 0.25, is_training()), 1);
    x = torch::dropout(torch::relu(fc1(x)), 0.5, is_training());
    return torch::log_softmax(fc2(x), 1);
  }
  torch::nn::Conv2d conv1{register_module("conv1", torch::nn::Conv2d(1, 32, 3))};
  torch::nn::Conv2d conv2{register_module("conv2", torch::nn::Conv2d(32, 64, 3))};
  torch::nn::Linear fc1{register_module("fc1", torch::nn::Linear(9216, 128))};
  torch::nn::Linear fc2{register_module("fc2", torch::nn::Linear(128, 10))};
};
TORCH_MODULE(BasicNet);

struct TransformerOptions {
  int64_t vocabulary = 256;
  int64_t length = 128;  ///< tokens of a sequence
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t width = 128;
  /// torch::linear, which adds the bias within the product, as PyTorch's nn.Linear does; LibTorch's adds it in a pass
  /// of its own where its input is no matrix.
  bool fused_bias = false;
  /// If set, every block is a module of this package of a Block, and fused_bias has no effect.
  std::optional<accelerate::nn::CompiledPackage> compiled_block{};
};

/// x + attention(norm(x)), then x + mlp(norm(x)): [B, T, W] -> [B, T, W]; a token sees those before it.
struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t width, int64_t the_heads, bool the_fused_bias)
      : heads(the_heads),
        fused_bias(the_fused_bias),
        norm1(register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        qkv(register_module("qkv", torch::nn::Linear(width, 3 * width))),
        projection(register_module("projection", torch::nn::Linear(width, width))),
        norm2(register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        wide(register_module("wide", torch::nn::Linear(width, 4 * width))),
        narrow(register_module("narrow", torch::nn::Linear(4 * width, width))) {}
  torch::Tensor forward(torch::Tensor x) {
    x = x + linear(projection, attention(linear(qkv, norm1(x))));
    return x + linear(narrow, torch::gelu(linear(wide, norm2(x)), "tanh"));
  }
  [[nodiscard]] torch::Tensor linear(torch::nn::Linear& layer, const torch::Tensor& x) const {
    return fused_bias ? torch::linear(x, layer->weight, layer->bias) : layer(x);
  }
  [[nodiscard]] torch::Tensor attention(const torch::Tensor& qkv_of_all) const {
    const auto batch = qkv_of_all.size(0), length = qkv_of_all.size(1), width = qkv_of_all.size(2) / 3;
    const auto parts = qkv_of_all.view({batch, length, 3, heads, width / heads}).permute({2, 0, 3, 1, 4}).unbind(0);
    const auto mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    return mixed.transpose(1, 2).reshape({batch, length, width});
  }
  int64_t heads;
  bool fused_bias;
  torch::nn::LayerNorm norm1;
  torch::nn::Linear qkv, projection;
  torch::nn::LayerNorm norm2;
  torch::nn::Linear wide, narrow;
};
TORCH_MODULE(Block);

/// GPT-2's form: tokens [B, T] -> logits [B, T, vocabulary]; the output layer's weight is the embedding's.
struct TransformerImpl : torch::nn::Module {
  explicit TransformerImpl(const TransformerOptions& options)
      : token(register_module("token", torch::nn::Embedding(options.vocabulary, options.width))),
        position(register_module("position", torch::nn::Embedding(options.length, options.width))),
        blocks(register_module("blocks", torch::nn::Sequential())),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width})))) {
    for (int64_t i = 0; i < options.layers; ++i) {
      if (options.compiled_block) {
        blocks->push_back(options.compiled_block->module());
      } else {
        blocks->push_back(Block(options.width, options.heads, options.fused_bias));
      }
    }
    for (const auto& table : {token, position}) torch::nn::init::normal_(table->weight, 0.0, 0.02);
  }
  torch::Tensor forward(const torch::Tensor& tokens) { return torch::linear(hidden(tokens), token->weight); }
  /// The input of the output layer, [B, T, width].
  torch::Tensor hidden(const torch::Tensor& tokens) {
    return norm(blocks->forward(token(tokens) + position->weight.narrow(0, 0, tokens.size(1))));
  }
  torch::nn::Embedding token, position;
  torch::nn::Sequential blocks;
  torch::nn::LayerNorm norm;
};
TORCH_MODULE(Transformer);

/// Draws the initial weights that draw_weights() of peers/nets.py draws: normal numbers for matrices, zero for biases.
///
/// \param parameters  In the order of the peer's network; replaced in place.
inline void draw_weights(torch::OrderedDict<std::string, torch::Tensor>& parameters, double deviation) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(1);
  for (auto& parameter : parameters) {
    if (parameter->dim() > 1) torch::nn::init::normal_(*parameter, 0.0, deviation);
    if (parameter.key().ends_with("bias")) parameter->zero_();
  }
}

/// A GPU works on after the last step returned.
inline std::function<void()> finish(const accelerate::Accelerator& accelerator) {
  if (!accelerator.device().is_cuda()) return {};
  return [] { torch::cuda::synchronize(); };
}

/// Versions, backend and threads of this process, for people.
inline std::string about(const accelerate::Accelerator& accelerator) {
  return fmt::format("Accelerate for C++, LibTorch {}, {} on {} rank(s), {} thread(s), {}", TORCH_VERSION,
                     accelerator.group().backend(), accelerator.num_processes(), at::get_num_threads(),
                     accelerator.device().str());
}

}  // namespace bench
