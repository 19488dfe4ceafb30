// SPDX-License-Identifier: Apache-2.0
// inference: base.cpp, followed by predictions that the ranks divide among themselves with split_between_processes().
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
  const torch::NoGradGuard no_grad;
  const auto digits = some_digits(accelerate::data::Split::test, 15)->read(torch::arange(15));
  const auto mine = accelerator.split_between_processes(digits.data).to(accelerator.device());
  const auto predicted = accelerator.gather(model(mine).argmax(1)).cpu();
  for (int64_t i = 0; i < predicted.size(0); ++i) {
    accelerator.print("predicted {}, is {}\n", predicted[i].item<int64_t>(), digits.target[i].item<int64_t>());
  }
  accelerator.print("test accuracy {:.3f}\n", accuracy(accelerator, model, test_loader));
  return 0;
}
