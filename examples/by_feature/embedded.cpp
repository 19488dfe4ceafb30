// SPDX-License-Identifier: Apache-2.0
// embedded: embed_in_program.cpp on any number of ranks and on GPUs. It adds prepare(), backward(), and data on the
// model's device; all other code is unchanged.
#include <torch/torch.h>

#include <accelerate/accelerate.hpp>

#include "station.hpp"

int main() {
  accelerate::Accelerator accelerator;
  Station station;
  torch::nn::Sequential net(torch::nn::Linear(2, 32), torch::nn::ReLU(), torch::nn::Linear(32, 1));
  torch::optim::AdamW adamw(net->parameters(), 1e-2);
  auto [model, optimizer] = accelerator.prepare(net, adamw);

  for (int64_t step = 0; step < 300; ++step) {
    const auto [x, distance] = accelerate::tree::to(station.measure(64), accelerator.device());
    optimizer.zero_grad();
    auto loss = torch::mse_loss(model(x), distance);
    accelerator.backward(loss);
    optimizer.step();
  }
  const auto [x, distance] = accelerate::tree::to(station.measure(1000), accelerator.device());
  accelerator.print("mean error {:.3f}\n", (net->forward(x) - distance).abs().mean().item<double>());
  return 0;
}
