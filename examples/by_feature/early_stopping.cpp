// SPDX-License-Identifier: Apache-2.0
// early_stopping: base.cpp that ends on all ranks when the loss of one rank is small enough.
#include <accelerate/accelerate.hpp>

#include "digits.hpp"

int main() {
  accelerate::Accelerator accelerator;
  accelerator.set_seed(42);

  auto net = small_net();
  torch::optim::AdamW adamw(net->parameters(), 1e-2);
  auto [model, optimizer, loader, test_loader] = accelerator.prepare(net, adamw, train_digits(), test_digits());

  bool stop = false;
  for (int64_t epoch = 0; epoch < 3 && !stop; ++epoch) {
    for (auto& [images, labels] : loader) {
      optimizer.zero_grad();
      auto loss = torch::nll_loss(model(images), labels);
      accelerator.backward(loss);
      optimizer.step();
      if (loss.item<double>() < 0.3) accelerator.set_trigger();
      stop = accelerator.check_trigger();  // the same result on every rank after the same step
      if (stop) break;
    }
  }
  accelerator.print("{}\n", stop ? "stopped early" : "never stopped");
  accelerator.print("test accuracy {:.3f}\n", accuracy(accelerator, model, test_loader));
  return 0;
}
