// SPDX-License-Identifier: Apache-2.0
// A user's program: it includes installed headers only, and links and runs the whole library. It also trains the
// package in its first argument, which the installed export_compiled.py exported.
#include <accelerate/accelerate.hpp>
#include <cstdio>

int main(int count, char** arguments) {
  accelerate::Accelerator accelerator({.cpu = true});
  torch::nn::Linear net(torch::nn::LinearOptions(2, 1).bias(false));
  torch::nn::init::ones_(net->weight);
  torch::optim::SGD sgd(net->parameters(), 0.5);
  auto [model, optimizer] = accelerator.prepare(net, sgd);

  accelerator.backward(model(torch::ones({1, 2})).sum());
  optimizer.step();
  std::printf("%s, %d process, weight %.1f\n", CONSUMER_NAME, static_cast<int>(accelerator.num_processes()),
              net->weight[0][0].item<double>());
  if (count == 1) return 0;
  accelerate::nn::CompiledModule compiled(arguments[1], {.trusted = true});
  compiled->forward(torch::ones({2, 3})).sum().backward();
  std::printf("gradient %.1f\n", compiled->named_parameters()["weight"].grad().sum().item<double>());
}
