// SPDX-License-Identifier: Apache-2.0
// character_gpt: base.cpp with a small GPT that learns to write sentences, letter by letter, and then writes some.
#include <accelerate/accelerate.hpp>

#include "../generated_data.hpp"
#include "gpt.hpp"

/// Returns the text followed by letters sampled from the network's distribution.
std::string continued(Gpt& net, std::string text, size_t letters, const torch::Device& device) {
  const torch::NoGradGuard no_grad;
  for (size_t end = text.size() + letters; text.size() < end;) {
    const std::string seen = text.substr(text.size() - std::min<size_t>(text.size(), 32));
    const auto tokens = torch::tensor(std::vector<int64_t>(seen.begin(), seen.end()), device).unsqueeze(0);
    const auto following = torch::softmax(net->forward(tokens).select(1, -1)[0], 0).multinomial(1);
    text += static_cast<char>(following.item<int64_t>());
  }
  return text;
}

int main() {
  accelerate::Accelerator accelerator;
  accelerator.set_seed(42);
  std::filesystem::path file;
  accelerator.local_main_process_first([&] { file = generated::text(); });

  Gpt net;
  torch::optim::AdamW adamw(net->parameters(), 1e-2);
  auto blocks = accelerate::data::text_blocks({.path = file, .block_size = 32, .vocabulary = 128},
                                              {.batch_size = 16, .shuffle = true});
  auto [model, optimizer, loader] = accelerator.prepare(net, adamw, blocks);

  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    for (auto& [tokens, following] : loader) {
      optimizer.zero_grad();
      auto loss = torch::nn::functional::cross_entropy(model(tokens).flatten(0, 1), following.flatten());
      accelerator.backward(loss);
      optimizer.step();
    }
  }
  accelerator.print("{}\n", continued(net, "the cat ", 60, accelerator.device()));
  return 0;
}
