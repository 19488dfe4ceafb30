// SPDX-License-Identifier: Apache-2.0
// tracking [FOLDER]: base.cpp that logs its losses to TensorBoard, JSON and CSV files.
#include <accelerate/accelerate.hpp>

#include "digits.hpp"

int main(int argc, char** argv) {
  const std::string logging_dir = argc > 1 ? argv[1] : "logs";
  accelerate::Accelerator accelerator({.log_with = {"all"}, .logging_dir = logging_dir});
  accelerator.set_seed(42);

  auto net = small_net();
  torch::optim::AdamW adamw(net->parameters(), 1e-2);
  auto [model, optimizer, loader, test_loader] = accelerator.prepare(net, adamw, train_digits(), test_digits());

  accelerator.init_trackers("by_feature", {{"lr", 1e-2}});
  int64_t logged = 0;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    for (auto& [images, labels] : loader) {
      optimizer.zero_grad();
      auto loss = torch::nll_loss(model(images), labels);
      accelerator.backward(loss);
      optimizer.step();
      accelerator.log({{"loss", loss}}, logged++);
    }
  }
  accelerator.end_training();  // ends the trackers' run
  accelerator.print("test accuracy {:.3f}\n", accuracy(accelerator, model, test_loader));
  return 0;
}
