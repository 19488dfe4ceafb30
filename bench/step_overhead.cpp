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

const std::vector<int64_t> kTiny{16, 16, 10};
const std::vector<int64_t> kFiftyLayers(51, 16);  // 100 parameters: optimizer cost with many parameters

struct Batch {
  torch::Tensor input, target;
};

/// One step as the README's loop has it, of as many micro-batches as the options accumulate.
template <typename Optimizer = torch::optim::SGD>
std::function<void()> prepared_step(const std::vector<int64_t>& sizes, double lr, const Batch& batch,
                                    const accelerate::AcceleratorOptions& options = {}) {
  auto accelerator = std::make_shared<accelerate::Accelerator>(options);
  const bench::Mlp net(sizes);
  auto [model, optimizer] = accelerator->prepare(net, std::make_shared<Optimizer>(net->parameters(), lr));
  const auto micro_batch = [=, model = model, optimizer = optimizer] {
    optimizer.zero_grad();
    const auto loss = torch::cross_entropy_loss(model(batch.input), batch.target);
    accelerator->backward(loss);
    optimizer.step();
  };
  const int64_t micro_batches = accelerator->gradient_accumulation_steps();
  if (micro_batches == 1) return micro_batch;
  return [=] {
    for (int64_t i = 0; i < micro_batches; ++i) {
      const auto window = accelerator->accumulate();
      micro_batch();
    }
  };
}

std::function<void()> stock_adam_step(const Batch& batch, at::Device device) {
  bench::Mlp net(kFiftyLayers);
  net->to(device);
  auto adam = std::make_shared<torch::optim::Adam>(net->parameters(), 1e-3);
  return [net, adam, batch]() mutable {
    adam->zero_grad();
    torch::cross_entropy_loss(net(batch.input), batch.target).backward();
    adam->step();
  };
}

}  // namespace

int main() {
  accelerate::Accelerator accelerator;
  accelerator.set_seed(1);
  const auto device = accelerator.device();
  const Batch batch{torch::randn({8, 16}).to(device), torch::randint(10, {8}).to(device)};
  const auto prepared = prepared_step(kTiny, 0.01, batch);
  bench::Mlp own_net(kTiny);
  own_net->to(device);
  HandWritten hand(own_net, batch.input, batch.target);
  const auto by_hand = [&hand] { hand.step(); };

  const auto finish = bench::finish(accelerator);
  const auto accumulated = prepared_step(kTiny, 0.01, batch, {.gradient_accumulation_steps = 4});
  const auto bf16 = prepared_step(kTiny, 0.01, batch, {.mixed_precision = accelerate::Precision::bf16});
  return bench::serve(accelerator.process_index(), bench::about(accelerator),
                      {bench::timed("prepared", prepared, finish), bench::timed("hand-written", by_hand, finish),
                       bench::timed("accumulate-4", accumulated, finish), bench::timed("bf16", bf16, finish),
                       bench::timed("adam-100", prepared_step<torch::optim::Adam>(kFiftyLayers, 1e-3, batch), finish),
                       bench::timed("adam-100-stock", stock_adam_step(batch, device), finish),
                       bench::counted("prepared-allocations", prepared, bench::allocations),
                       bench::counted("hand-written-allocations", by_hand, bench::allocations)});
}
