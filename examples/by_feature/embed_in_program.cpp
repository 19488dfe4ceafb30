// SPDX-License-Identifier: Apache-2.0
// embed_in_program: a program without this library, with its own data and loop. See embedded.cpp.
#include <torch/torch.h>

#include <cstdio>

#include "station.hpp"

int main() {
  Station station;
  torch::nn::Sequential net(torch::nn::Linear(2, 32), torch::nn::ReLU(), torch::nn::Linear(32, 1));
  torch::optim::AdamW optimizer(net->parameters(), 1e-2);

  for (int64_t step = 0; step < 300; ++step) {
    const auto [x, distance] = station.measure(64);
    optimizer.zero_grad();
    auto loss = torch::mse_loss(net->forward(x), distance);
    loss.backward();
    optimizer.step();
  }
  const auto [x, distance] = station.measure(1000);
  std::printf("mean error %.3f\n", (net->forward(x) - distance).abs().mean().item<double>());
  return 0;
}
