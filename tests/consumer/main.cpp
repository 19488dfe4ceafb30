// SPDX-License-Identifier: Apache-2.0
// A user's program: it includes installed headers only, and links and runs the whole library.
#include <accelerate/accelerate.hpp>
#include <cstdio>

int main() {
  accelerate::Accelerator accelerator({.cpu = true});
  torch::nn::Linear net(torch::nn::LinearOptions(2, 1).bias(false));
  torch::nn::init::ones_(net->weight);
  torch::optim::SGD sgd(net->parameters(), 0.5);
  auto [model, optimizer] = accelerator.prepare(net, sgd);

  accelerator.backward(model(torch::ones({1, 2})).sum());
  optimizer.step();
  std::printf("%s, %d process, weight %.1f\n", CONSUMER_NAME, static_cast<int>(accelerator.num_processes()),
              net->weight[0][0].item<double>());
}
