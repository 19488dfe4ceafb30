// SPDX-License-Identifier: Apache-2.0
// With fused_optimizer false, a prepared optimizer is bit-equal to its own step().
#include "tests/testing.hpp"
//
#include "accelerate/precision/policy.hpp"
#include "tests/accelerator/ranks.hpp"

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;

namespace {

struct StockBatch {
  at::Tensor x, y;
};

StockBatch stock_batch(int64_t step) {
  const auto numbers = torch::arange(16 * 8, torch::kFloat) + static_cast<double>(step);
  return {(numbers * 0.7311).sin().reshape({16, 8}), (torch::arange(16) + step) % 3};
}

torch::nn::Sequential stock_net() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(8, 16), torch::nn::Tanh(), torch::nn::Linear(16, 3));
}

torch::Tensor flat_weights(const torch::nn::Sequential& net) {
  std::vector<at::Tensor> flat;
  for (const auto& parameter : net->parameters()) flat.push_back(parameter.detach().flatten());
  return torch::cat(flat);
}

template <typename Optimizer, typename Options>
torch::Tensor trained_by_libtorch(const Options& options) {
  auto net = stock_net();
  Optimizer optimizer(net->parameters(), options);
  for (int64_t step = 0; step < 50; ++step) {
    const auto [x, y] = stock_batch(step);
    optimizer.zero_grad();
    torch::cross_entropy_loss(net->forward(x), y).backward();
    optimizer.step();
  }
  return flat_weights(net);
}

enum class StepCall { plain, closure };

template <typename Optimizer, typename Options>
torch::Tensor trained_here(const Options& of_optimizer, const AcceleratorOptions& options,
                           StepCall call = StepCall::plain) {
  auto net = stock_net();
  Accelerator accelerator(options);
  auto [model, optimizer] = accelerator.prepare(net, Optimizer(net->parameters(), of_optimizer));
  for (int64_t step = 0; step < 50; ++step) {
    const auto batch = stock_batch(step);
    const auto backward = [&, &model = model, &optimizer = optimizer] {
      optimizer.zero_grad();
      const auto loss = torch::cross_entropy_loss(model(batch.x), batch.y);
      accelerator.backward(loss);
      return loss;
    };
    if (call == StepCall::closure) {
      CHECK(optimizer.step(backward).defined());
    } else {
      backward();
      optimizer.step();
    }
  }
  return flat_weights(net);
}

template <typename Optimizer, typename Options>
void steps_as_libtorch(const Options& options) {
  const Accelerator sets_threads({.cpu = true});  // sets the same number of threads for all
  const auto stock = trained_by_libtorch<Optimizer>(options);
  CHECK(torch::equal(trained_here<Optimizer>(options, {.cpu = true, .fused_optimizer = false}), stock));
  CHECK(torch::equal(trained_here<Optimizer>(options, {.cpu = true, .fused_optimizer = false}, StepCall::closure),
                     stock));
  CHECK(torch::allclose(trained_here<Optimizer>(options, {.cpu = true}), stock, 1e-2, 1e-2));
}

}  // namespace

TEST_CASE("without fused_optimizer a prepared optimizer's steps equal LibTorch's bit for bit") {
  using namespace torch::optim;
  steps_as_libtorch<Adam>(AdamOptions(1e-2));
  steps_as_libtorch<AdamW>(AdamWOptions(1e-2).amsgrad(true));
  steps_as_libtorch<SGD>(SGDOptions(0.1).momentum(0.9).weight_decay(1e-4));
  steps_as_libtorch<RMSprop>(RMSpropOptions(1e-3));
  steps_as_libtorch<Adagrad>(AdagradOptions(1e-2));
}

TEST_CASE("a prepared Adam is fused by default and differs from LibTorch's in the last bits") {
  const auto stock = trained_by_libtorch<torch::optim::Adam>(torch::optim::AdamOptions(1e-2));
  const auto fused = trained_here<torch::optim::Adam>(torch::optim::AdamOptions(1e-2), {.cpu = true});
  CHECK_FALSE(torch::equal(fused, stock));
  CHECK((fused - stock).abs().max().item<double>() < 1e-2);
}

TEST_CASE("without fused_optimizer loss scaling, masters, windows and clipping equal the fused step") {
  const auto far = [](const at::Tensor& a, const at::Tensor& b) {
    return (a.to(torch::kFloat) - b.to(torch::kFloat)).abs().max().item<double>();
  };
  const auto same = [&](AcceleratorOptions options) {
    const auto momentum = torch::optim::SGDOptions(0.1).momentum(0.9);
    for (const auto call : {StepCall::plain, StepCall::closure}) {
      options.fused_optimizer = true;
      const auto fused = trained_here<torch::optim::SGD>(momentum, options, call);
      options.fused_optimizer = false;
      const auto stock = trained_here<torch::optim::SGD>(momentum, options, call);
      const double moved = far(fused, flat_weights(stock_net()));
      CHECK(moved > 0.01);
      CHECK(far(stock, fused) < 0.2 * moved);
    }
  };
  same({.cpu = true, .mixed_precision = accelerate::Precision::fp16});
  same({.cpu = true, .mixed_precision = accelerate::Precision::bf16});
  same({.cpu = true, .precision_policy = accelerate::precision::pure_bf16()});
  for (const bool fused : {true, false}) {
    for (const int64_t ranks : {1, 2}) {
      on_ranks(ranks,
               [](Accelerator& accelerator) {
                 OneWeight net;
                 auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
                 for (int micro = 0; micro < 4; ++micro) {
                   auto window = accelerator.accumulate(model);
                   accelerator.backward(model(full(4.0)).sum());
                   accelerator.clip_grad_norm_(model, 1.0);
                   optimizer.step();
                   optimizer.zero_grad();
                 }
                 CHECK(net->w.item<double>() == doctest::Approx(-2.0));
               },
               {.cpu = true, .gradient_accumulation_steps = 2, .fused_optimizer = fused});
    }
  }
}

TEST_CASE("without fused_optimizer an fp16 step is skipped for inf") {
  Accelerator accelerator({.cpu = true,
                           .mixed_precision = accelerate::Precision::fp16,
                           .grad_scaler = {.init_scale = 1024.0},
                           .fused_optimizer = false});
  OneWeight net;
  net->to(torch::kFloat);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1.0));
  for (const double x : {1.0, std::numeric_limits<double>::infinity(), 2.0}) {
    accelerator.backward(model(torch::full({1}, x)).sum());
    optimizer.step();
    CHECK(optimizer.step_was_skipped() == std::isinf(x));
    optimizer.zero_grad();
  }
  CHECK(net->w.item<double>() == -3.0);
  CHECK(accelerator.loss_scale() == 512.0);
}
