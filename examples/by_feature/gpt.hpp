// SPDX-License-Identifier: Apache-2.0
// A small GPT: decoder blocks with causal attention.
#pragma once

#include <torch/torch.h>

struct GptOptions {
  int64_t vocabulary = 128;
  int64_t block_size = 32;  ///< T, context length in tokens
  int64_t width = 32;       ///< numbers per token, C
  int64_t heads = 2;
  int64_t layers = 2;
};

/// x + attention(norm(x)), then x + mlp(norm(x)); x [B, T, C]
struct GptBlockImpl : torch::nn::Module {
  explicit GptBlockImpl(const GptOptions& options)
      : heads(options.heads),
        norm1(register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width})))),
        norm2(register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width})))),
        in(register_module("in", torch::nn::Linear(options.width, 3 * options.width))),
        out(register_module("out", torch::nn::Linear(options.width, options.width))),
        wide(register_module("wide", torch::nn::Linear(options.width, 4 * options.width))),
        narrow(register_module("narrow", torch::nn::Linear(4 * options.width, options.width))) {}

  torch::Tensor attention(const torch::Tensor& x) {
    const int64_t head_width = x.size(2) / heads;
    // [3, B, heads, T, head_width]
    const auto qkv = in(x).view({x.size(0), x.size(1), 3, heads, head_width}).permute({2, 0, 3, 1, 4});
    const auto seen = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0.0, /*is_causal=*/true);
    return out(seen.transpose(1, 2).reshape(x.sizes()));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = x + attention(norm1(x));
    return x + narrow(torch::gelu(wide(norm2(x))));
  }

  int64_t heads;
  torch::nn::LayerNorm norm1, norm2;
  torch::nn::Linear in, out, wide, narrow;
};
TORCH_MODULE(GptBlock);

struct GptImpl : torch::nn::Module {
  explicit GptImpl(const GptOptions& options = {})
      : tokens(register_module("tokens", torch::nn::Embedding(options.vocabulary, options.width))),
        places(register_module("places", torch::nn::Embedding(options.block_size, options.width))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width})))),
        out(register_module("out", torch::nn::Linear(options.width, options.vocabulary))) {
    register_module("blocks", blocks);
    for (int64_t i = 0; i < options.layers; ++i) blocks->push_back(GptBlock(options));
  }

  /// \param text  [B, T] tokens, T at most block_size. \returns logits [B, T, vocabulary] of the next token.
  torch::Tensor forward(const torch::Tensor& text) {
    const auto here = torch::arange(text.size(1), text.device());
    return out(norm(blocks->forward(tokens(text) + places(here))));
  }

  torch::nn::Embedding tokens, places;
  torch::nn::Sequential blocks;
  torch::nn::LayerNorm norm;
  torch::nn::Linear out;
};
TORCH_MODULE(Gpt);
