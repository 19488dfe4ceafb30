// SPDX-License-Identifier: Apache-2.0
// Graphs on a real GPU: the stand-in's tests of graphed_step (tests/stand_in/graph_test.cpp), and CUDA-only behaviour.
#include "tests/testing.hpp"
//
#include "accelerate/accelerate.hpp"

using accelerate::Accelerator;
using accelerate::Precision;

namespace {

struct NetImpl : torch::nn::Module {
  explicit NetImpl(double the_dropout) : dropout(the_dropout) {}
  at::Tensor forward(const at::Tensor& images) {
    const auto x = torch::relu(norm(convolution(images))).flatten(1);
    return last(torch::dropout(x, dropout, is_training()));
  }
  double dropout;
  torch::nn::Conv2d convolution =
      register_module("convolution", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 3).padding(1)));
  torch::nn::BatchNorm2d norm = register_module("norm", torch::nn::BatchNorm2d(8));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(8 * 6 * 6, 5));
};
TORCH_MODULE(Net);

/// Twelve steps; their losses and the last weights.
std::vector<at::Tensor> train(Precision precision, bool graphs, double dropout = 0) {
  Accelerator accelerator({.mixed_precision = precision, .device = "cuda"});
  accelerator.set_seed(3);
  Net net(dropout);
  torch::optim::AdamW adamw(net->parameters(), 0.0078125);
  accelerate::optim::ExponentialLR falling(adamw, 0.5);
  auto [model, optimizer, scheduler] = accelerator.prepare(net, adamw, falling);
  const auto images = torch::randn({16, 1, 6, 6}).to(accelerator.device());
  const auto labels = torch::randint(5, {16}).to(accelerator.device());
  const auto function = [&, &model = model, &optimizer = optimizer](const at::Tensor& x, const at::Tensor& y) {
    optimizer.zero_grad();
    const auto loss = torch::cross_entropy_loss(model(x), y);
    accelerator.backward(loss);
    accelerator.clip_grad_norm_(model, 1.0);
    optimizer.step();
    return loss;
  };
  auto step = accelerator.graphed_step(function);
  std::vector<at::Tensor> seen;
  for (int i = 0; i < 12; ++i) {
    seen.push_back(graphs ? step(images, labels) : function(images, labels).detach());
    scheduler.step();
  }
  CHECK(step.not_captured_reason() == "");
  CHECK(step.graphs() == (graphs ? 1 : 0));
  seen.push_back(net->last->weight.detach());
  return seen;
}

}  // namespace

TEST_CASE("a graph trains like the plain step: float32, bf16, fp16, clipping, a schedule") {
  for (const auto precision : {Precision::no, Precision::bf16, Precision::fp16}) {
    CAPTURE(accelerate::env::mixed_precision_name(precision));
    const auto plain = train(precision, false), graphed = train(precision, true);
    const double tolerance = precision == Precision::no ? 1e-5 : 1e-2;
    for (size_t i = 0; i < plain.size(); ++i) CHECK(torch::allclose(graphed[i], plain[i], tolerance, tolerance));
  }
}

TEST_CASE("each replay draws its own random numbers") {
  Accelerator accelerator({.device = "cuda"});
  auto step = accelerator.graphed_step([](const at::Tensor& x) { return torch::dropout(x, 0.5, true); });
  const auto ones = torch::ones({1000}).to(accelerator.device());
  for (int i = 0; i < 4; ++i) step(ones);
  CHECK(step.graphs() == 1);
  CHECK_FALSE(torch::equal(step(ones), step(ones)));
}
