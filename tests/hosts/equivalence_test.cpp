// SPDX-License-Identifier: Apache-2.0
// start_test.py runs it on several hosts with every runner.
#include "tests/testing.hpp"
//
#include "accelerate/accelerate.hpp"
#include "tests/world.hpp"

namespace {

torch::nn::Sequential make_net() {
  torch::manual_seed(3);
  torch::nn::Sequential net(torch::nn::Linear(20, 30), torch::nn::Tanh(), torch::nn::Linear(30, 5));
  net->to(torch::kDouble);
  return net;
}

}  // namespace

TEST_CASE("5 AdamW steps in float64 on all ranks equal those of one process with the whole batch, within 1e-12") {
  constexpr int64_t kShare = 4;
  accelerate::Accelerator accelerator(testing::world(), {.cpu = true});
  auto net = make_net();
  auto alone = make_net();
  torch::optim::AdamW adamw(net->parameters(), 0.01);
  torch::optim::AdamW adamw_alone(alone->parameters(), 0.01);
  auto [model, optimizer] = accelerator.prepare(net, adamw);

  torch::manual_seed(4);
  for (int64_t step = 0; step < 5; ++step) {
    const auto batch = torch::randn({kShare * accelerator.num_processes(), 20}, torch::kDouble);
    optimizer.zero_grad();
    accelerator.backward(model(batch.narrow(0, kShare * accelerator.process_index(), kShare)).pow(2).mean());
    optimizer.step();
    adamw_alone.zero_grad();
    alone->forward(batch).pow(2).mean().backward();
    adamw_alone.step();
  }
  for (size_t i = 0; i < net->parameters().size(); ++i) {
    CHECK((net->parameters()[i] - alone->parameters()[i]).abs().max().item<double>() <= 1e-12);
  }
}
