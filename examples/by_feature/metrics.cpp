// SPDX-License-Identifier: Apache-2.0
// metrics: base.cpp with the mean loss of each epoch over all ranks, and the number of recognised images per digit.
// Every test image counts once, for any number of ranks.
#include <accelerate/accelerate.hpp>

#include "digits.hpp"

int main() {
  accelerate::Accelerator accelerator;
  accelerator.set_seed(42);

  auto net = small_net();
  torch::optim::AdamW adamw(net->parameters(), 1e-2);
  auto [model, optimizer, loader, test_loader] = accelerator.prepare(net, adamw, train_digits(), test_digits());

  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    auto losses = torch::zeros({}, accelerator.device());
    for (auto& [images, labels] : loader) {
      optimizer.zero_grad();
      auto loss = torch::nll_loss(model(images), labels);
      accelerator.backward(loss);
      optimizer.step();
      losses += loss.detach();
    }
    const auto mean_loss = accelerator.reduce(losses / loader.size(), "mean").item<double>();
    accelerator.print("epoch {} mean loss {:.3f}\n", epoch + 1, mean_loss);
  }
  const torch::NoGradGuard no_grad;
  auto met = torch::zeros({10}), found = torch::zeros({10});
  for (auto& [images, labels] : test_loader) {
    const auto [predicted, true_labels] = accelerator.gather_for_metrics(std::pair{model(images).argmax(1), labels});
    met += torch::bincount(true_labels.cpu(), {}, 10);
    found += torch::bincount(true_labels.masked_select(predicted.eq(true_labels)).cpu(), {}, 10);
  }
  for (int64_t digit = 0; digit < 10; ++digit) {
    accelerator.print("recall of {} {:.3f}\n", digit, (found[digit] / met[digit]).item<double>());
  }
  accelerator.print("metrics of {} images\n", met.sum().item<double>());
  accelerator.print("test accuracy {:.3f}\n", accuracy(accelerator, model, test_loader));
  return 0;
}
