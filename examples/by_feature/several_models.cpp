// SPDX-License-Identifier: Apache-2.0
// several_models: base.cpp with the two networks of a GAN: the generator creates digits, the discriminator separates
// them from real ones.
#include <accelerate/accelerate.hpp>

#include "digits.hpp"

int main() {
  accelerate::Accelerator accelerator;
  accelerator.set_seed(42);

  torch::nn::Sequential maker(torch::nn::Linear(16, 64), torch::nn::ReLU(), torch::nn::Linear(64, 784));
  torch::nn::Sequential judge(torch::nn::Flatten(), torch::nn::Linear(784, 64), torch::nn::ReLU(),
                              torch::nn::Linear(64, 1));
  torch::optim::AdamW makers_adamw(maker->parameters(), 1e-3), judges_adamw(judge->parameters(), 1e-3);
  auto [make, judged, makers_optimizer, judges_optimizer, loader] =
      accelerator.prepare(maker, judge, makers_adamw, judges_adamw, train_digits());

  double brightness = 0;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    for (auto& [images, labels] : loader) {
      const auto made = make(torch::randn({images.size(0), 16}, images.device()));

      judges_optimizer.zero_grad();
      auto judges_loss = (torch::softplus(-judged(images)) + torch::softplus(judged(made.detach()))).mean();
      accelerator.backward(judges_loss);
      judges_optimizer.step();

      makers_optimizer.zero_grad();
      auto makers_loss = torch::softplus(-judged(made)).mean();
      accelerator.backward(makers_loss);
      makers_optimizer.step();
      brightness = made.clamp(-0.5, 3).mean().item<double>() - images.mean().item<double>();
    }
  }
  accelerator.print("made digits differ by {:.3f} in brightness\n", brightness);
  return 0;
}
