// SPDX-License-Identifier: Apache-2.0
// Calls that linear_cross_entropy refuses, with their texts.
#include "tests/nn/linear_cross_entropy.hpp"

using namespace nn_testing;

namespace {

void loss_refused(const std::string& text, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& target,
                  const LinearCrossEntropyOptions& options = {}) {
  CHECK_THROWS_WITH_AS(linear_cross_entropy(x, weight, target, options), ("linear_cross_entropy: " + text).c_str(),
                       accelerate::Error);
}

at::Tensor on_meta(const at::Tensor& tensor) { return tensor.detach().to(at::Device(at::kMeta)); }

}  // namespace

TEST_CASE("a target that is not a class is refused with its index, its value and the range") {
  const LossProblem problem({2, 3});
  const auto check = [&](int64_t value, int64_t ignore_index, const std::string& text) {
    const at::Tensor target = problem.target.clone();
    target[1][2] = value;
    for (const auto reduction : {Reduction::mean, Reduction::none}) {
      loss_refused(text, problem.x, problem.weight, target, {.ignore_index = ignore_index, .reduction = reduction});
    }
  };
  check(11, -100, "target[1, 2] is 11, must be a class from 0 to 10 or the ignore_index -100");
  check(-100, -1, "target[1, 2] is -100, must be a class from 0 to 10 or the ignore_index -1");
  loss_refused("target is 12, must be a class from 0 to 10 or the ignore_index -100", problem.x[0][0], problem.weight,
               torch::tensor(12));
  const at::Tensor ignored = problem.target.clone();
  ignored[0][0] = 500;
  CHECK_NOTHROW(linear_cross_entropy(problem.x, problem.weight, ignored, {.ignore_index = 500}));
}

TEST_CASE("an unknown reduction is refused") {
  const LossProblem one({2, 3});
  loss_refused("reduction is 7, must be none, mean or sum", one.x, one.weight, one.target,
               {.reduction = static_cast<Reduction>(7)});
}

TEST_CASE("inconsistent shapes are refused with both") {
  const LossProblem one({2, 3});
  loss_refused("weight is [11, 6, 1], must be [classes, features]", one.x, one.weight.unsqueeze(2), one.target);
  loss_refused("x is [2, 3, 5] and weight [11, 6]; the last dimension of both must be the features",
               one.x.narrow(2, 0, 5), one.weight, one.target);
  loss_refused("x is [] and weight [11, 6]; the last dimension of both must be the features", torch::ones({}),
               one.weight, one.target);
  loss_refused("target is [6] and x [2, 3, 6]; target must be [2, 3], one class for each row of x", one.x, one.weight,
               one.target.flatten());
  loss_refused("bias is [10], must be [11], one number for each row of weight", one.x, one.weight, one.target,
               {.bias = one.bias.narrow(0, 0, 10)});
  loss_refused("class_weights is [11, 1], must be [11], one number for each row of weight", one.x, one.weight,
               one.target, {.class_weights = one.class_weights.unsqueeze(1)});
}

TEST_CASE("inconsistent dtypes and devices are refused with both") {
  const LossProblem one({2, 3});
  loss_refused("weight is Float and x Double; convert one of them, or use autocast", one.x, one.weight.to(at::kFloat),
               one.target);
  loss_refused("bias is Float and x Double; convert one of them, or use autocast", one.x, one.weight, one.target,
               {.bias = one.bias.to(at::kFloat)});
  loss_refused("x is Long, must be floating point", one.x.to(at::kLong), one.weight, one.target);
  loss_refused("class_weights is Long, must be floating point", one.x, one.weight, one.target,
               {.class_weights = one.class_weights.to(at::kLong)});
  loss_refused("target is Double, must be Long: a class for each row; probabilities are not supported", one.x,
               one.weight, one.target.to(at::kDouble));
  loss_refused("weight is on meta and x on cpu; move both to one device", one.x, on_meta(one.weight), one.target);
  loss_refused("bias is on meta and x on cpu; move both to one device", one.x, one.weight, one.target,
               {.bias = on_meta(one.bias)});
  loss_refused("class_weights is on meta and x on cpu; move both to one device", one.x, one.weight, one.target,
               {.class_weights = on_meta(one.class_weights)});
  loss_refused("target is on meta and x on cpu; move both to one device", one.x, one.weight, on_meta(one.target));
}

TEST_CASE("options out of range are refused with their values") {
  const LossProblem one({2, 3});
  loss_refused("label_smoothing is 1.5, must be from 0 to 1", one.x, one.weight, one.target, {.label_smoothing = 1.5});
  loss_refused("label_smoothing is nan, must be from 0 to 1", one.x, one.weight, one.target,
               {.label_smoothing = std::numeric_limits<double>::quiet_NaN()});
  loss_refused("max_bytes is 0, must be at least 1", one.x, one.weight, one.target, {.max_bytes = 0});
  loss_refused("class_weights requires a gradient, which is not computed; detach() it", one.x, one.weight, one.target,
               {.class_weights = one.class_weights.clone().requires_grad_(true)});
}

TEST_CASE("a second derivative is refused, and gradients of other losses in the same graph are kept") {
  for (const auto reduction : {Reduction::mean, Reduction::none}) {
    const LossProblem one({2, 3});
    const at::Tensor loss = linear_cross_entropy(one.x, one.weight, one.target, {.reduction = reduction}).sum();
    CHECK_THROWS_WITH_AS(
        torch::autograd::grad({loss}, {one.x}, {}, true, true),
        "linear_cross_entropy: backward was called with create_graph, but this function has no second derivative; "
        "use cross_entropy_loss(linear(x, weight)) for it",
        accelerate::Error);
    CHECK_NOTHROW(loss.backward());
  }
}

TEST_CASE("LibTorch refuses a weight that changed between forward and backward") {
  for (const auto reduction : {Reduction::mean, Reduction::none}) {
    const LossProblem one({2, 3});
    const at::Tensor loss = linear_cross_entropy(one.x, one.weight, one.target, {.reduction = reduction}).sum();
    {
      const torch::NoGradGuard no_grad;
      one.weight.add_(1);
    }
    CHECK_THROWS_WITH_AS(loss.backward(), doctest::Contains("modified by an inplace operation"), c10::Error);
    CHECK_FALSE(one.weight.grad().defined());
  }
}

TEST_CASE("with changed hidden states the mean keeps its gradients, and one loss per row is refused") {
  const LossProblem one({2, 3});
  const at::Tensor x = one.x * 1;
  const auto change = [&] {
    const torch::NoGradGuard no_grad;
    x.zero_();
  };
  const auto right =
      loss_gradients(stock_loss(one.x, one.weight, one.target, {}), one.leaves(), torch::ones({}, at::kDouble));
  const at::Tensor each = linear_cross_entropy(x, one.weight, one.target, {.reduction = Reduction::none});
  const at::Tensor mean = linear_cross_entropy(x, one.weight, one.target);
  change();
  const auto seen = loss_gradients(mean, one.leaves(), torch::ones({}, at::kDouble));
  CHECK(close(seen[0], right[0]));
  CHECK(close(seen[1], right[1]));
  CHECK_THROWS_WITH_AS(each.sum().backward(), doctest::Contains("modified by an inplace operation"), c10::Error);
}
