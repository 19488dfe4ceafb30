// SPDX-License-Identifier: Apache-2.0
// base: the training loop from which each other program of this folder differs in one feature.
#include <accelerate/accelerate.hpp>

#include "digits.hpp"

int main() {
  accelerate::Accelerator accelerator;
  accelerator.set_seed(42);

  auto net = small_net();
  torch::optim::AdamW adamw(net->parameters(), 1e-2);
  auto [model, optimizer, loader, test_loader] = accelerator.prepare(net, adamw, train_digits(), test_digits());

  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    for (auto& [images, labels] : loader) {
      optimizer.zero_grad();
      auto loss = torch::nll_loss(model(images), labels);
      accelerator.backward(loss);
      optimizer.step();
    }
  }
  accelerator.print("test accuracy {:.3f}\n", accuracy(accelerator, model, test_loader));
  return 0;
}
