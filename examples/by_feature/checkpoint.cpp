// SPDX-License-Identifier: Apache-2.0
// checkpoint [FOLDER [EPOCHS]]: base.cpp that resumes from its checkpoint when it is restarted.
#include <accelerate/accelerate.hpp>

#include "digits.hpp"

int main(int argc, char** argv) {
  const std::filesystem::path folder = argc > 1 ? argv[1] : "digits_run";
  accelerate::Accelerator accelerator({.project = {.project_dir = folder, .total_limit = 1}});
  accelerator.set_seed(42);

  auto net = small_net();
  torch::optim::AdamW adamw(net->parameters(), 1e-2);
  auto [model, optimizer, loader, test_loader] = accelerator.prepare(net, adamw, train_digits(), test_digits());

  const int64_t epochs = argc > 2 ? std::stoll(argv[2]) : 3;
  int64_t epoch = accelerator.load_state({}, {.if_any = true}).epoch;  // newest complete checkpoint, if any
  if (epoch > 0) accelerator.print("{} epochs of the checkpoint are done\n", epoch);
  for (; epoch < epochs; ++epoch) {
    for (auto& [images, labels] : loader) {
      optimizer.zero_grad();
      auto loss = torch::nll_loss(model(images), labels);
      accelerator.backward(loss);
      optimizer.step();
    }
    accelerator.save_state();
  }
  accelerator.print("test accuracy {:.3f}\n", accuracy(accelerator, model, test_loader));
  return 0;
}
