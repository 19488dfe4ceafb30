// SPDX-License-Identifier: Apache-2.0
// A whole training step on several ranks.
#include <accelerate/accelerate.hpp>

#include "bench/harness.hpp"
#include "bench/nets.hpp"

namespace {

/// Each network is a program's only one: it has an Accelerator of its own.
template <typename Net, typename Loss>
std::function<void()> training_step(const Net& net, const torch::Tensor& inputs, const Loss& loss) {
  auto accelerator = std::make_shared<accelerate::Accelerator>();
  auto [model, optimizer] = accelerator->prepare(net, std::make_shared<torch::optim::AdamW>(net->parameters(), 1e-3));
  const auto x = inputs.to(accelerator->device());
  const auto y = torch::randint(10, {x.size(0)}).to(accelerator->device());
  return [=, model = model, optimizer = optimizer]() mutable {
    optimizer.zero_grad();
    accelerator->backward(loss(model(x), y));
    optimizer.step();
  };
}

}  // namespace

int main() {
  accelerate::Accelerator accelerator;
  accelerator.set_seed(1);
  const auto finish = bench::finish(accelerator);
  const bench::Mlp mlp(std::vector<int64_t>{784, 128, 128, 128, 128, 128, 128, 128, 128, 10});
  const auto mlp_step = training_step(mlp, torch::randn({64, 784}), [](const auto& logits, const auto& y) {
    return torch::cross_entropy_loss(logits, y);
  });
  const bench::BasicNet basic_net;
  const auto basic_net_step =
      training_step(basic_net, torch::randn({64, 1, 28, 28}),
                    [](const auto& scores, const auto& y) { return torch::nll_loss(scores, y); });
  return bench::serve(accelerator.process_index(), bench::about(accelerator),
                      {bench::timed("mlp", mlp_step, finish), bench::timed("basic-net", basic_net_step, finish)});
}
