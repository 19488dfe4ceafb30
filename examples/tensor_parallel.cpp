// SPDX-License-Identifier: Apache-2.0
// tensor_parallel: a small GPT on a mesh of data parallel x tensor parallel ranks, which the launcher sets:
//   accelerate_launch --num_processes 4 --use_parallelism_config --parallelism_config_dp_replicate_size 2
//                     --parallelism_config_tp_size 2 tensor_parallel
// Both ranks of a tensor parallel group read the same text and have half of each layer, and gradients are averaged over
// the data parallel groups. Each mesh has the same result, up to rounding and the padding of the last batch.
#include <accelerate/accelerate.hpp>
#include <accelerate/tensor_parallel/attention.hpp>
#include <accelerate/tensor_parallel/cross_entropy.hpp>
#include <accelerate/tensor_parallel/embedding.hpp>
#include <accelerate/tensor_parallel/linear.hpp>

#include "command_line.hpp"
#include "generated_data.hpp"

namespace nn = accelerate::nn;

namespace {

using accelerate::comm::Group;

constexpr int64_t kVocabulary = 128;
constexpr int64_t kLength = 32;  // T, tokens of a block
constexpr int64_t kWidth = 64;   // C
constexpr int64_t kHeads = 4;
constexpr int64_t kLayers = 2;

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const Group& tensor)
      : norm1(register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        attention(register_module("attention", nn::ParallelMultiheadAttention(kWidth, kHeads, tensor))),
        norm2(register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        up(register_module("up", nn::ColumnParallelLinear(kWidth, 4 * kWidth, tensor))),
        down(register_module("down", nn::RowParallelLinear(4 * kWidth, kWidth, tensor))) {}

  /// \param x  [T, B, C], equal on all ranks of the tensor parallel group. \param later  [T, T], true above the
  /// diagonal.
  torch::Tensor forward(torch::Tensor x, const torch::Tensor& later) {
    const auto y = norm1(x);
    x = x + attention(y, y, y, torch::Tensor(), later);
    return x + down(torch::gelu(up(norm2(x))));
  }

  torch::nn::LayerNorm norm1;
  nn::ParallelMultiheadAttention attention;
  torch::nn::LayerNorm norm2;
  nn::ColumnParallelLinear up;
  nn::RowParallelLinear down;
};
TORCH_MODULE(Block);

struct GptImpl : torch::nn::Module {
  explicit GptImpl(const Group& tensor)
      : tokens(register_module("tokens", nn::VocabParallelEmbedding(kVocabulary, kWidth, tensor))),
        places(register_module("places", torch::nn::Embedding(kLength, kWidth))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))) {
    for (int64_t i = 0; i < kLayers; ++i) blocks.push_back(register_module(fmt::format("block{}", i), Block(tensor)));
  }

  /// \param text  [B, T] tokens. \returns the input of the output layer, [T, B, C], equal on all ranks of the group.
  torch::Tensor forward(const torch::Tensor& text) {
    const auto here = torch::arange(text.size(1), text.device());
    const auto later = torch::ones({text.size(1), text.size(1)}, text.options().dtype(torch::kBool)).triu(1);
    auto x = tokens(text.t()) + places(here).unsqueeze(1);
    for (auto& block : blocks) x = block(x, later);
    return norm(x);
  }

  nn::VocabParallelEmbedding tokens;
  torch::nn::Embedding places;
  std::vector<Block> blocks;
  torch::nn::LayerNorm norm;
};
TORCH_MODULE(Gpt);

void train() {
  accelerate::Accelerator accelerator({.split_batches = true});  // on the mesh of the launcher
  const Group& tensor = accelerator.tensor_parallel_group();
  accelerator.set_seed(42);  // the same on all ranks, because they have parts of one model and read one text

  std::filesystem::path file;
  accelerator.local_main_process_first([&] { file = generated::text(); });
  auto blocks = accelerate::data::text_blocks({.path = file, .block_size = kLength, .vocabulary = kVocabulary},
                                              {.batch_size = 16, .shuffle = true});
  Gpt net(tensor);
  torch::optim::AdamW adamw(net->parameters(), 3e-3);
  auto [model, optimizer, loader] = accelerator.prepare(net, adamw, blocks);

  double perplexity = 0;
  for (int epoch = 1; epoch <= 2; ++epoch) {
    torch::Tensor losses = torch::zeros({}, accelerator.device());
    for (auto& [text, following] : loader) {
      optimizer.zero_grad();
      const auto hidden = model(text);  // no rank computes the logits of all tokens
      const auto loss = nn::vocab_parallel_linear_cross_entropy(hidden, net->tokens->weight, following.t(), tensor);
      accelerator.backward(loss);
      accelerator.clip_grad_norm_(net->parameters(), 1.0);  // counts each element of the whole model once
      optimizer.step();
      losses += loss.detach();
    }
    perplexity = std::exp(accelerator.reduce(losses / loader.size(), "mean").item<double>());
    accelerator.print("epoch {} perplexity {:.4f}\n", epoch, perplexity);
  }
  int64_t elements = 0;
  for (const auto& parameter : net->parameters()) elements += parameter.numel();
  accelerator.print("{} data parallel x {} tensor parallel ranks with {} parameters each: perplexity {:.4f}\n",
                    accelerator.data_parallel_group().size(), tensor.size(), elements, perplexity);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains a small GPT on a mesh of data parallel x tensor parallel ranks");
  return command_line::run(app, argc, argv, train);
}
