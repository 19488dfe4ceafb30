// SPDX-License-Identifier: Apache-2.0
// local_sgd: base.cpp with local steps; ranks average their weights after every fourth step.
#include <accelerate/accelerate.hpp>

#include "digits.hpp"

int main() {
  accelerate::Accelerator accelerator;
  accelerator.set_seed(42);

  auto net = small_net();
  torch::optim::AdamW adamw(net->parameters(), 1e-2);
  auto [model, optimizer, loader, test_loader] = accelerator.prepare(net, adamw, train_digits(), test_digits());

  auto local = accelerator.local_sgd(model, 4);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    for (auto& [images, labels] : loader) {
      optimizer.zero_grad();
      auto loss = torch::nll_loss(model(images), labels);
      accelerator.backward(loss);
      optimizer.step();
      local.step();
    }
  }
  local.finish();
  accelerator.print("test accuracy {:.3f}\n", accuracy(accelerator, model, test_loader));
  return 0;
}
