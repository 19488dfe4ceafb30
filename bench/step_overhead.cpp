// SPDX-License-Identifier: Apache-2.0
// What prepare() costs: a network so small that the host's work is all there is.
#include <accelerate/accelerate.hpp>

#include "bench/allocations.hpp"
#include "bench/harness.hpp"
#include "bench/nets.hpp"

namespace {

/// The best loop by hand: the fused kernel on lists that are made once.
class HandWritten {
 public:
  HandWritten(bench::Mlp net, torch::Tensor input, torch::Tensor target)
      : net_(std::move(net)), input_(std::move(input)), target_(std::move(target)), parameters_(net_->parameters()) {}

  void step() {
    for (auto& parameter : parameters_) parameter.mutable_grad().reset();
    torch::cross_entropy_loss(net_(input_), target_).backward();
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : parameters_) gradients_.push_back(parameter.grad());
    at::_fused_sgd_(parameters_, gradients_, {}, /*weight_decay=*/0.0, /*momentum=*/0.0, /*lr=*/0.01,
                    /*dampening=*/0.0, /*nesterov=*/false, /*maximize=*/false, /*is_first_step=*/false);
    gradients_.clear();
  }

 private:
  bench::Mlp net_;
  torch::Tensor input_, target_;
  std::vector<torch::Tensor> parameters_, gradients_;
};

}  // namespace

int main() {
  accelerate::Accelerator accelerator;
  accelerator.set_seed(1);
  const auto input = torch::randn({8, 16}).to(accelerator.device());
  const auto target = torch::randint(10, {8}).to(accelerator.device());

  bench::Mlp net(std::vector<int64_t>{16, 16, 10});
  torch::optim::SGD sgd(net->parameters(), 0.01);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto prepared = [&accelerator, &input, &target, model = model, optimizer = optimizer] {
    optimizer.zero_grad();
    const auto loss = torch::cross_entropy_loss(model(input), target);
    accelerator.backward(loss);
    optimizer.step();
  };

  bench::Mlp own_net(std::vector<int64_t>{16, 16, 10});
  own_net->to(accelerator.device());
  HandWritten hand(own_net, input, target);
  const auto by_hand = [&hand] { hand.step(); };

  // 100 parameters: what the optimizer costs where there are many small ones.
  const std::vector<int64_t> fifty_layers(51, 16);
  bench::Mlp deep(fifty_layers);
  torch::optim::Adam adam(deep->parameters(), 1e-3);
  auto [deep_model, deep_optimizer] = accelerator.prepare(deep, adam);
  const auto fused_adam = [&accelerator, &input, &target, model = deep_model, optimizer = deep_optimizer] {
    optimizer.zero_grad();
    const auto loss = torch::cross_entropy_loss(model(input), target);
    accelerator.backward(loss);
    optimizer.step();
  };
  bench::Mlp plain(fifty_layers);
  plain->to(accelerator.device());
  torch::optim::Adam stock(plain->parameters(), 1e-3);
  const auto stock_adam = [&] {
    stock.zero_grad();
    torch::cross_entropy_loss(plain(input), target).backward();
    stock.step();
  };

  return bench::serve(accelerator.process_index(), bench::about(accelerator),
                      {bench::timed("prepared", prepared, bench::finish(accelerator)),
                       bench::timed("hand-written", by_hand, bench::finish(accelerator)),
                       bench::timed("adam-100", fused_adam, bench::finish(accelerator)),
                       bench::timed("adam-100-stock", stock_adam, bench::finish(accelerator)),
                       bench::counted("prepared-allocations", prepared, bench::allocations),
                       bench::counted("hand-written-allocations", by_hand, bench::allocations)});
}
