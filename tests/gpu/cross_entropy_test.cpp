// SPDX-License-Identifier: Apache-2.0
// The fused kernel of linear_cross_entropy on a real GPU beside LibTorch's operators on the same GPU.
#include "tests/nn/linear_cross_entropy.hpp"
//
#include "accelerate/accelerate.hpp"
#include "accelerate/nn/cross_entropy_kernel.hpp"

using namespace nn_testing;

namespace {

const c10::Device gpu(c10::kCUDA, 0);

/// Loss and gradients of x, weight and bias.
std::vector<at::Tensor> fused_or_not(const std::vector<at::Tensor>& leaves, const at::Tensor& target,
                                     LinearCrossEntropyOptions options, bool fused) {
  if (options.bias.defined()) options.bias = leaves[2];
  options.fused_kernel = fused;
  const at::Tensor loss = linear_cross_entropy(leaves[0], leaves[1], target, options);
  auto seen = loss_gradients(loss, leaves, torch::linspace(0.5, 1.5, loss.numel(), gpu).reshape(loss.sizes()));
  seen.insert(seen.begin(), loss.detach());
  return seen;
}

void check_fused(const std::vector<at::Tensor>& leaves, const at::Tensor& target,
                 const LinearCrossEntropyOptions& options) {
  CAPTURE(describe_loss(options));
  const auto dtype = leaves[0].scalar_type();
  CAPTURE(c10::toString(dtype));
  const auto expected = fused_or_not(leaves, target, options, false),
             seen = fused_or_not(leaves, target, options, true);
  for (size_t i = 0; i < seen.size(); ++i) {
    CAPTURE(i);
    REQUIRE(seen[i].defined() == expected[i].defined());
    if (!seen[i].defined()) continue;
    const double tolerance = i == 0 || dtype == at::kFloat ? 1e-4 : 2e-2;
    const at::Tensor right = expected[i].to(at::kDouble);
    const double largest = right.abs().max().item<double>();
    CHECK((seen[i].to(at::kDouble) - right).abs().max().item<double>() <= tolerance * std::max(largest, 1e-6));
  }
}

std::vector<at::Tensor> on_gpu(const std::vector<at::Tensor>& tensors, at::ScalarType dtype) {
  std::vector<at::Tensor> moved;
  for (const at::Tensor& tensor : tensors) moved.push_back(tensor.detach().to(gpu, dtype).requires_grad_(true));
  return moved;
}

constexpr std::array kFusedDtypes{at::kFloat, at::kBFloat16, at::kHalf};

}  // namespace

TEST_CASE("the fused kernel is loaded on a GPU") {
  for (const auto dtype : kFusedDtypes) CHECK(accelerate::nn::cross_entropy_kernel(gpu, dtype) != nullptr);
  CHECK(accelerate::nn::cross_entropy_kernel(gpu, at::kDouble) == nullptr);
}

TEST_CASE("the fused kernel has the losses and gradients of LibTorch's operators for all options") {
  for (const auto dtype : kFusedDtypes) {
    LossProblem problem({3, 5});
    const auto all = all_loss_options(problem, problem.target.flatten()[0].item<int64_t>());
    const auto leaves = on_gpu(problem.leaves(), dtype);
    for (LinearCrossEntropyOptions options : all) {
      if (options.class_weights.defined()) options.class_weights = options.class_weights.to(gpu);
      check_fused(leaves, problem.target.to(gpu), options);
    }
  }
}

TEST_CASE("the fused kernel has the losses and gradients of LibTorch's operators for many numbers of classes") {
  torch::manual_seed(7);
  for (const auto dtype : kFusedDtypes) {
    for (const int64_t classes : {1, 7, 8, 9, 1000, 32000, 50257, 128256}) {
      CAPTURE(classes);
      const auto leaves =
          on_gpu({torch::randn({65, 64}), torch::randn({classes, 64}) * 0.3, torch::randn({classes})}, dtype);
      const at::Tensor target = torch::randint(classes, {65}).to(gpu);
      target[3] = -100;
      check_fused(leaves, target, {});
      check_fused(leaves, target, {.bias = leaves[2], .label_smoothing = 0.1, .max_bytes = 10 * classes * 4});
    }
  }
}

TEST_CASE("a graph with the fused kernel trains like the plain step") {
  const auto train = [](bool graphed, bool fused) {
    accelerate::Accelerator accelerator({.mixed_precision = accelerate::Precision::bf16, .device = "cuda"});
    accelerator.set_seed(3);
    torch::nn::Linear net(32, 1003);
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.5));
    const at::Tensor x = torch::randn({40, 32}).to(gpu), target = torch::randint(1003, {40}).to(gpu);
    const auto function = [&, &optimizer = optimizer](const at::Tensor& inputs, const at::Tensor& classes) {
      optimizer.zero_grad();
      const auto region = accelerator.autocast();
      const at::Tensor loss =
          linear_cross_entropy(inputs, net->weight, classes, {.bias = net->bias, .fused_kernel = fused});
      accelerator.backward(loss);
      optimizer.step();
      return loss;
    };
    auto step = accelerator.graphed_step(function);
    std::vector<double> losses;
    for (int i = 0; i < 10; ++i) losses.push_back((graphed ? step(x, target) : function(x, target)).item<double>());
    CHECK(step.not_captured_reason() == "");
    CHECK(step.graphs() == (graphed ? 1 : 0));
    return losses;
  };
  const auto operators = train(false, false), plain = train(false, true), graphed = train(true, true);
  for (size_t i = 0; i < plain.size(); ++i) {
    CHECK(graphed[i] == doctest::Approx(plain[i]).epsilon(1e-3));
    CHECK(plain[i] == doctest::Approx(operators[i]).epsilon(1e-3));
  }
  CHECK(plain.back() < plain.front());
}
