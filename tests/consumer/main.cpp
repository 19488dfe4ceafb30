// SPDX-License-Identifier: Apache-2.0
// A user's program: it sees installed headers only and runs what needs both libraries.
#include <accelerate/base/error.hpp>
#include <accelerate/optim/fused_step.hpp>
#include <torch/torch.h>

#include <cstdio>
#include <vector>

int main() {
  auto weight = torch::ones({2}, torch::requires_grad());
  torch::optim::SGD sgd(std::vector<at::Tensor>{weight}, 0.5);
  weight.sum().backward();
  if (!accelerate::optim::FusedStep::recognise(sgd)->step()) return 1;
  const accelerate::Error error(accelerate::ErrorKind::usage, {}, "consumer", "weight is 0.5");
  std::printf("%s, %s, %.1f\n", CONSUMER_NAME, error.what(), weight[0].item<double>());
}
