// SPDX-License-Identifier: Apache-2.0
// launch_workers [RANKS]: base.cpp that starts its ranks itself, without accelerate_launch.
#include <accelerate/accelerate.hpp>

#include "digits.hpp"

int main(int argc, char** argv) {
  const int64_t ranks = argc > 1 ? std::stoll(argv[1]) : 2;
  const auto rank_main = [] {
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
  };
  accelerate::launch_workers(rank_main, ranks);
  return 0;
}
