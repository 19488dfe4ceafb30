// SPDX-License-Identifier: Apache-2.0
// accumulation_by_tokens: base.cpp with two batches per optimizer step, in which some labels are unknown. Each known
// label of the step has equal weight on any rank and in any batch, as tokens do in batches of texts of unequal length.
#include <accelerate/accelerate.hpp>

#include "digits.hpp"

constexpr int64_t kUnknown = -100;

int main() {
  accelerate::Accelerator accelerator({.gradient_accumulation_steps = 2});
  accelerator.set_seed(42);

  auto net = small_net();
  torch::optim::AdamW adamw(net->parameters(), 1e-2);
  auto [model, optimizer, loader, test_loader] = accelerator.prepare(net, adamw, train_digits(), test_digits());

  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    for (auto& [images, labels] : loader) {
      auto window = accelerator.accumulate(model);
      const auto tokens = labels.masked_fill(torch::rand_like(labels, torch::kFloat) < 0.3, kUnknown);
      optimizer.zero_grad();
      auto loss = torch::nll_loss(model(images), tokens, {}, at::Reduction::Sum, kUnknown);
      accelerator.backward(loss, {.tokens = tokens.ne(kUnknown).sum().item<int64_t>()});
      optimizer.step();
    }
  }
  accelerator.print("test accuracy {:.3f}\n", accuracy(accelerator, model, test_loader));
  return 0;
}
