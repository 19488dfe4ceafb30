// SPDX-License-Identifier: Apache-2.0
// find_batch_size: base.cpp with the largest batch size that fits into memory on every rank.
#include <accelerate/accelerate.hpp>

#include "digits.hpp"

/// Simulates a device with memory for 100 images.
void check_memory(const torch::Tensor& images) {
  if (images.size(0) > 100) throw std::bad_alloc();
}

int main() {
  accelerate::Accelerator accelerator;
  const auto train_with = [&](int64_t batch_size) {
    accelerator.free_memory();
    accelerator.set_seed(42);

    auto net = small_net();
    torch::optim::AdamW adamw(net->parameters(), 1e-2);
    auto [model, optimizer, loader, test_loader] =
        accelerator.prepare(net, adamw, train_digits(batch_size), test_digits());

    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      for (auto& [images, labels] : loader) {
        check_memory(images);
        optimizer.zero_grad();
        auto loss = torch::nll_loss(model(images), labels);
        accelerator.backward(loss);
        optimizer.step();
      }
    }
    accelerator.print("test accuracy {:.3f}\n", accuracy(accelerator, model, test_loader));
  };
  const int64_t batch_size = accelerator.find_executable_batch_size(train_with, 128);
  accelerator.print("batch size {}\n", batch_size);
  return 0;
}
