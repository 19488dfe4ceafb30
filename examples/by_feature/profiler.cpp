// SPDX-License-Identifier: Apache-2.0
// profiler: base.cpp with a profile of three of its steps.
#include <accelerate/accelerate.hpp>

#include "digits.hpp"

int main() {
  accelerate::Accelerator accelerator;
  accelerator.set_seed(42);

  auto net = small_net();
  torch::optim::AdamW adamw(net->parameters(), 1e-2);
  auto [model, optimizer, loader, test_loader] = accelerator.prepare(net, adamw, train_digits(), test_digits());

  const accelerate::ProfileSchedule schedule{.wait = 2, .warmup = 1, .active = 3, .repeat = 1};
  auto profiler = accelerator.profile({.schedule_option = schedule});
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    for (auto& [images, labels] : loader) {
      optimizer.zero_grad();
      auto loss = torch::nll_loss(model(images), labels);
      accelerator.backward(loss);
      optimizer.step();
      profiler.step();
    }
  }
  profiler.stop();
  accelerator.print("{}", profiler.table(5));
  accelerator.print("test accuracy {:.3f}\n", accuracy(accelerator, model, test_loader));
  return 0;
}
