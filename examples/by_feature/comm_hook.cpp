// SPDX-License-Identifier: Apache-2.0
// comm_hook: base.cpp with compressed gradients. Alternatives: fp16_compress_hook, bf16_compress_hook, a custom hook.
#include <accelerate/accelerate.hpp>

#include "digits.hpp"

int main() {
  using accelerate::gradient::power_sgd_hook;
  const auto comm_hook = power_sgd_hook({.matrix_approximation_rank = 4, .start_step = 10});
  accelerate::Accelerator accelerator({.comm_hook = comm_hook});
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
