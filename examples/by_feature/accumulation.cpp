// SPDX-License-Identifier: Apache-2.0
// accumulation: base.cpp with gradients accumulated over two batches per optimizer step.
#include <accelerate/accelerate.hpp>

#include "digits.hpp"

int main() {
  accelerate::Accelerator accelerator({.gradient_accumulation_steps = 2});
  accelerator.set_seed(42);

  auto net = small_net();
  torch::optim::AdamW adamw(net->parameters(), 1e-2);
  auto [model, optimizer, loader, test_loader] = accelerator.prepare(net, adamw, train_digits(), test_digits());

  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    for (auto& [images, labels] : loader) {
      auto window = accelerator.accumulate(model);
      optimizer.zero_grad();
      auto loss = torch::nll_loss(model(images), labels);
      accelerator.backward(loss);
      optimizer.step();
    }
  }
  accelerator.print("test accuracy {:.3f}\n", accuracy(accelerator, model, test_loader));
  return 0;
}
