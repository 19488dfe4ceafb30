// SPDX-License-Identifier: Apache-2.0
// torchscript FILE: base.cpp with a network that was written in Python and exported; see export_net.py.
#include <torch/script.h>

#include <accelerate/accelerate.hpp>

#include "digits.hpp"

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "torchscript FILE; examples/by_feature/export_net.py FILE writes one\n");
    return 2;
  }
  accelerate::Accelerator accelerator;
  accelerator.set_seed(42);

  auto net = torch::jit::load(argv[1]);
  std::vector<torch::Tensor> parameters;
  for (const auto& parameter : net.parameters()) parameters.push_back(parameter);
  torch::optim::AdamW adamw(parameters, 1e-2);
  auto [model, optimizer, loader, test_loader] = accelerator.prepare(net, adamw, train_digits(), test_digits());

  const auto answers = [&script = model](const torch::Tensor& x) { return script({x}).toTensor(); };
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    for (auto& [images, labels] : loader) {
      optimizer.zero_grad();
      auto loss = torch::nll_loss(answers(images), labels);
      accelerator.backward(loss);
      optimizer.step();
    }
  }
  accelerator.print("test accuracy {:.3f}\n", accuracy(accelerator, answers, test_loader));
  return 0;
}
