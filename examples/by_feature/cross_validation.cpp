// SPDX-License-Identifier: Apache-2.0
// cross_validation: base.cpp with four folds of the digits; each fold is the test set once.
#include <accelerate/accelerate.hpp>

#include "digits.hpp"

int main() {
  namespace data = accelerate::data;
  accelerate::Accelerator accelerator;
  accelerator.set_seed(42);

  const auto digits = some_digits(data::Split::train, 1024);
  const auto numbers = torch::arange(1024);
  std::vector<double> folds;
  for (int64_t fold = 0; fold < 4; ++fold) {
    accelerator.free_memory();  // releases the previous fold
    const auto held_out = numbers.remainder(4).eq(fold);
    auto net = small_net();
    torch::optim::AdamW adamw(net->parameters(), 1e-2);
    data::Loader train(data::subset(digits, numbers.masked_select(~held_out)), {.batch_size = 32, .shuffle = true});
    data::Loader test(data::subset(digits, numbers.masked_select(held_out)), {.batch_size = 100});
    auto [model, optimizer, loader, test_loader] = accelerator.prepare(net, adamw, train, test);

    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      for (auto& [images, labels] : loader) {
        optimizer.zero_grad();
        auto loss = torch::nll_loss(model(images), labels);
        accelerator.backward(loss);
        optimizer.step();
      }
    }
    folds.push_back(accuracy(accelerator, model, test_loader));
    accelerator.print("fold {} accuracy {:.3f}\n", fold + 1, folds.back());
  }
  accelerator.print("test accuracy {:.3f}\n", std::accumulate(folds.begin(), folds.end(), 0.0) / 4);
  return 0;
}
