// SPDX-License-Identifier: Apache-2.0
// A whole training step on several ranks.
#include <accelerate/accelerate.hpp>

#include "bench/harness.hpp"
#include "bench/nets.hpp"

int main() {
  accelerate::Accelerator accelerator;
  accelerator.set_seed(1);
  const auto device = accelerator.device();
  const auto target = torch::randint(10, {64}).to(device);

  bench::Mlp mlp(std::vector<int64_t>{784, 128, 128, 128, 128, 128, 128, 128, 128, 10});
  torch::optim::AdamW mlp_adamw(mlp->parameters(), 1e-3);
  auto [mlp_model, mlp_optimizer] = accelerator.prepare(mlp, mlp_adamw);
  const auto flat = torch::randn({64, 784}).to(device);
  const auto mlp_step = [&, model = mlp_model, optimizer = mlp_optimizer] {
    optimizer.zero_grad();
    accelerator.backward(torch::cross_entropy_loss(model(flat), target));
    optimizer.step();
  };

  bench::BasicNet basic_net;
  torch::optim::AdamW basic_adamw(basic_net->parameters(), 1e-3);
  auto [basic_model, basic_optimizer] = accelerator.prepare(basic_net, basic_adamw);
  const auto images = torch::randn({64, 1, 28, 28}).to(device);
  const auto basic_step = [&, model = basic_model, optimizer = basic_optimizer] {
    optimizer.zero_grad();
    accelerator.backward(torch::nll_loss(model(images), target));
    optimizer.step();
  };

  return bench::serve(accelerator.process_index(), bench::about(accelerator),
                      {bench::timed("mlp", mlp_step, bench::finish(accelerator)),
                       bench::timed("basic-net", basic_step, bench::finish(accelerator))});
}
