// SPDX-License-Identifier: Apache-2.0
// A whole training step on several ranks; on one rank, what several are compared with.
#include <accelerate/accelerate.hpp>

#include "bench/harness.hpp"
#include "bench/nets.hpp"

namespace {

/// Each network is a program's only one: it has an Accelerator of its own.
template <typename Optimizer = torch::optim::AdamW, typename Net, typename Loss>
std::function<void()> training_step(const Net& net, const torch::Tensor& inputs, const torch::Tensor& targets,
                                    const Loss& loss) {
  auto accelerator = std::make_shared<accelerate::Accelerator>();
  auto [model, optimizer] = accelerator->prepare(net, std::make_shared<Optimizer>(net->parameters(), 1e-3));
  const auto x = inputs.to(accelerator->device());
  const auto y = targets.to(accelerator->device());
  return [=, model = model, optimizer = optimizer]() mutable {
    optimizer.zero_grad();
    accelerator->backward(loss(model(x), y));
    optimizer.step();
  };
}

torch::Tensor cross_entropy(const torch::Tensor& logits, const torch::Tensor& y) {
  return torch::cross_entropy_loss(logits, y);
}

torch::Tensor cross_entropy_of_tokens(const torch::Tensor& logits, const torch::Tensor& y) {
  return torch::cross_entropy_loss(logits.flatten(0, 1), y.flatten());
}

std::function<void()> basic_net_step(int64_t batch) {
  return training_step(bench::BasicNet(), torch::randn({batch, 1, 28, 28}), torch::randint(10, {batch}),
                       [](const auto& scores, const auto& y) { return torch::nll_loss(scores, y); });
}

std::function<void()> transformer_step() {
  const bench::TransformerOptions options;
  const auto tokens = torch::randint(options.vocabulary, {8, options.length + 1});
  return training_step(bench::Transformer(options), tokens.narrow(1, 0, options.length),
                       tokens.narrow(1, 1, options.length), cross_entropy_of_tokens);
}

}  // namespace

int main() {
  accelerate::Accelerator accelerator;
  accelerator.set_seed(1);
  const auto finish = bench::finish(accelerator);
  const auto digits = torch::randint(10, {64});
  const auto mlp = training_step(bench::Mlp(std::vector<int64_t>{784, 128, 128, 128, 128, 128, 128, 128, 128, 10}),
                                 torch::randn({64, 784}), digits, cross_entropy);
  const auto tiny_mlp = training_step<torch::optim::SGD>(bench::Mlp(std::vector<int64_t>{16, 16, 10}),
                                                         torch::randn({8, 16}), torch::randint(10, {8}), cross_entropy);
  return bench::serve(
      accelerator.process_index(), bench::about(accelerator),
      {bench::timed("mlp", mlp, finish), bench::timed("tiny-mlp", tiny_mlp, finish),
       bench::timed("transformer", transformer_step(), finish), bench::timed("basic-net", basic_net_step(64), finish),
       bench::timed("basic-net-32", basic_net_step(32), finish)});
}
