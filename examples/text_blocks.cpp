// SPDX-License-Identifier: Apache-2.0
// text_blocks [FILE]: a small language model on tokenised text in one mapped file. FILE contains consecutive tokens as
// uint16; without FILE a small one is generated.
#include <accelerate/accelerate.hpp>

#include "command_line.hpp"
#include "generated_data.hpp"

namespace data = accelerate::data;

namespace {

constexpr int64_t kVocabulary = 128;
constexpr int64_t kWidth = 64;

struct LanguageModelImpl : torch::nn::Module {
  /// \param tokens  [B, T]. \returns logits [B, T, kVocabulary] of the next token.
  torch::Tensor forward(const torch::Tensor& tokens) { return out(std::get<0>(memory(embedding(tokens)))); }

  torch::nn::Embedding embedding = register_module("embedding", torch::nn::Embedding(kVocabulary, kWidth));
  torch::nn::GRU memory =
      register_module("memory", torch::nn::GRU(torch::nn::GRUOptions(kWidth, kWidth).batch_first(true)));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(kWidth, kVocabulary));
};
TORCH_MODULE(LanguageModel);

/// Returns the text that the model generates after a prefix, letter by letter.
std::string continued(LanguageModel& net, std::string text, int64_t letters, const torch::Device& device) {
  torch::NoGradGuard no_grad;
  for (int64_t i = 0; i < letters; ++i) {
    const std::vector<int64_t> tokens(text.begin(), text.end());
    const auto following = net->forward(torch::tensor(tokens, device).unsqueeze(0)).select(1, -1).argmax(-1);
    text += static_cast<char>(following.item<int64_t>());
  }
  return text;
}

/// \param file  Tokens as uint16. If empty, a small text is generated.
void train(std::filesystem::path file) {
  accelerate::Accelerator accelerator;
  accelerator.set_seed(42);
  if (file.empty()) accelerator.local_main_process_first([&] { file = generated::text(); });

  LanguageModel net;
  torch::optim::AdamW adamw(net->parameters(), 1e-2);
  auto blocks = data::text_blocks({.path = file, .block_size = 32, .vocabulary = kVocabulary},
                                  {.batch_size = 16, .shuffle = true});
  auto [model, optimizer, loader] = accelerator.prepare(net, adamw, blocks);

  for (int epoch = 1; epoch <= 2; ++epoch) {
    torch::Tensor losses = torch::zeros({}, accelerator.device());
    for (auto& [tokens, following] : loader) {
      optimizer.zero_grad();
      auto loss = torch::nn::functional::cross_entropy(model(tokens).flatten(0, 1), following.flatten());
      accelerator.backward(loss);
      optimizer.step();
      losses += loss.detach();
    }
    const auto mean = accelerator.reduce(losses / loader.size(), "mean").item<double>();
    accelerator.print("epoch {} perplexity {:.3f}\n", epoch, std::exp(mean));
  }
  accelerator.on_main_process([&] { fmt::print("{}\n", continued(net, "the cat ", 60, accelerator.device())); });
}

}  // namespace

int main(int argc, char** argv) {
  std::filesystem::path file;
  CLI::App app("Trains a small language model on tokens in one mapped file");
  app.add_option("FILE", file, "File of tokens, each a uint16. If unset, a small text is generated.");
  return command_line::run(app, argc, argv, [&] { train(file); });
}
