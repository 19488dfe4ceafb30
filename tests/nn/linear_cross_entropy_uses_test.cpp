// SPDX-License-Identifier: Apache-2.0
// linear_cross_entropy in training: reduced precision, loss scaling, tied embeddings, recomputation, repeated backward.
#include "tests/nn/linear_cross_entropy.hpp"
//
#include <ATen/autocast_mode.h>
#include <torch/script.h>

#include <thread>

using namespace nn_testing;

namespace {

struct LossAutocast {
  explicit LossAutocast(at::ScalarType dtype) {
    at::autocast::set_autocast_dtype(at::kCPU, dtype);
    at::autocast::set_autocast_enabled(at::kCPU, true);
  }
  ~LossAutocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  LossAutocast(const LossAutocast&) = delete;
  LossAutocast& operator=(const LossAutocast&) = delete;
};

/// Largest difference, relative to the largest expected number.
double relative_difference(const at::Tensor& seen, const at::Tensor& expected) {
  const at::Tensor right = expected.to(at::kDouble);
  return ((seen.to(at::kDouble) - right).abs().max() / right.abs().max()).item<double>();
}

/// Compares with float64 on the same rounded numbers.
void check_reduced(const LossProblem& problem, const LinearCrossEntropyOptions& options, double tolerance,
                   double scale = 1) {
  CAPTURE(describe_loss(options));
  const auto wide = [](const at::Tensor& leaf) { return leaf.detach().to(at::kDouble).requires_grad_(true); };
  const at::Tensor x = wide(problem.x), weight = wide(problem.weight), bias = wide(problem.bias);
  LinearCrossEntropyOptions theirs = options;
  if (options.bias.defined()) theirs.bias = bias;
  const at::Tensor expected = stock_loss(x, weight, problem.target, theirs);
  const at::Tensor seen = linear_cross_entropy(problem.x, problem.weight, problem.target, options);
  CHECK((seen.scalar_type() == at::kFloat));
  // The loss of one row has the rounding error of its logits, 2^-8 for bf16. Over rows the errors cancel.
  CHECK(relative_difference(seen, expected) < (options.reduction == Reduction::none ? 4e-3 : 1e-3));
  const auto right = loss_gradients(expected, {x, weight, bias}, torch::ones_like(expected));
  const auto ours = loss_gradients(seen, problem.leaves(), torch::full_like(seen, scale));
  for (size_t i = 0; i < right.size(); ++i) {
    CAPTURE(i);
    REQUIRE(right[i].defined() == ours[i].defined());
    if (!right[i].defined()) continue;
    CHECK((ours[i].scalar_type() == problem.leaves()[i].scalar_type()));
    CHECK(relative_difference(ours[i].to(at::kDouble) / scale, right[i]) < tolerance);
  }
}

/// Numbers that bf16 represents, in another dtype.
LossProblem rounded_problem(const std::vector<int64_t>& leading, at::ScalarType dtype) {
  LossProblem problem(leading);
  for (at::Tensor* leaf : {&problem.x, &problem.weight, &problem.bias}) {
    *leaf = (leaf->detach() * 0.5).to(at::kBFloat16).to(dtype).requires_grad_(true);
  }
  return problem;
}

}  // namespace

TEST_CASE(
    "autocast: bf16 losses are within 1e-3 for all options, those of rows within 4e-3, and gradients keep the dtypes "
    "of their inputs") {
  const LossProblem problem = rounded_problem({4, 16}, at::kFloat);
  const auto all = all_loss_options(problem, problem.target[0][0].item<int64_t>());
  const LossAutocast autocast(at::kBFloat16);
  for (const auto& options : all) check_reduced(problem, options, 2e-2);
}

TEST_CASE("autocast: the logits have its dtype, also with float32 hidden states") {
  const LossProblem problem({64}, at::kFloat);
  const auto loss_of = [&](const at::Tensor& x, const at::Tensor& weight) {
    return linear_cross_entropy(x.detach(), weight.detach(), problem.target);
  };
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor wide = loss_of(problem.x, problem.weight);
    const at::Tensor narrow = loss_of(problem.x.to(dtype), problem.weight.to(dtype));
    const LossAutocast autocast(dtype);
    const at::Tensor seen = loss_of(problem.x, problem.weight);
    CHECK(torch::equal(seen, narrow));
    CHECK_FALSE(torch::equal(seen, wide));
  }
}

TEST_CASE("fp16: large hidden states, one frequent class and large class weights are no overflow") {
  for (const double x_scale : {1.0, 100.0}) {
    LossProblem problem = rounded_problem({9000}, at::kHalf);
    {
      const torch::NoGradGuard no_grad;
      problem.x.abs_().mul_(x_scale);
      problem.weight.mul_(0.02);
      problem.target.index_put_({torch::rand({9000}) < 0.3}, 0);
    }
    at::Tensor class_weights = torch::ones({problem.weight.size(0)});
    for (const double class_weight : {1.0, 1e3, 1e5}) {
      class_weights[3] = class_weight;
      for (const auto reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
        CAPTURE(x_scale);
        CAPTURE(class_weight);
        const LinearCrossEntropyOptions options{.class_weights = class_weights, .reduction = reduction};
        const auto wide = [](const at::Tensor& leaf) { return leaf.detach().to(at::kDouble).requires_grad_(true); };
        const at::Tensor x = wide(problem.x), weight = wide(problem.weight);
        LinearCrossEntropyOptions theirs = options;
        theirs.class_weights = class_weights.to(at::kDouble);
        const at::Tensor expected = stock_loss(x, weight, problem.target, theirs);
        const at::Tensor seen = linear_cross_entropy(problem.x, problem.weight, problem.target, options);
        CHECK(relative_difference(seen, expected) < 4e-3);
        // Upstream gradients for which the results are in the range of fp16.
        const double upstream = reduction == Reduction::mean ? 1 : 1 / (9000 * class_weight);
        const auto right = loss_gradients(expected, {x, weight}, torch::full_like(expected, upstream));
        const auto ours = loss_gradients(seen, {problem.x, problem.weight}, torch::full_like(seen, upstream));
        CHECK(relative_difference(ours[1], right[1]) < 2e-2);
        CHECK(ours[0].isfinite().all().item<bool>());
      }
    }
  }
}

TEST_CASE("bf16 and fp16 parameters: losses within 1e-3 for all options, those of rows within 4e-3, in float32") {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const LossProblem problem = rounded_problem({4, 16}, dtype);
    const auto all = all_loss_options(problem, problem.target[0][0].item<int64_t>());
    for (const auto& options : all) check_reduced(problem, options, 2e-2);
  }
}

TEST_CASE("fp16: a mean over many rows does not underflow, and a loss scale above fp16's range is no overflow") {
  const LossProblem problem = rounded_problem({9000}, at::kFloat);
  const LossAutocast autocast(at::kHalf);
  for (const double scale : {1.0, 65536.0, 16777216.0}) {
    CAPTURE(scale);
    check_reduced(problem, {.bias = problem.bias}, 2e-3, scale);
    const at::Tensor each =
        linear_cross_entropy(problem.x, problem.weight, problem.target, {.reduction = Reduction::none});
    const auto seen = loss_gradients(each, problem.leaves(), torch::full_like(each, scale / 9000.0));
    const auto right = loss_gradients(linear_cross_entropy(problem.x, problem.weight, problem.target), problem.leaves(),
                                      torch::full({}, scale));
    CHECK(relative_difference(seen[0], right[0]) < 2e-3);
    CHECK(relative_difference(seen[1], right[1]) < 2e-3);
  }
}

TEST_CASE("autocast's copies of weights keep their gradients: a tied layer before and after in one region") {
  const LossProblem problem = rounded_problem({8}, at::kFloat);
  const auto gradient_with = [&](const auto& loss_of) {
    const LossAutocast autocast(at::kBFloat16);
    const at::Tensor loss = loss_of() + torch::linear(problem.x, problem.weight).pow(2).mean().to(at::kFloat);
    return loss_gradients(loss, {problem.weight}, torch::ones({}))[0];
  };
  const at::Tensor right = gradient_with([&] { return stock_loss(problem.x, problem.weight, problem.target, {}); });
  CHECK(relative_difference(
            gradient_with([&] { return linear_cross_entropy(problem.x, problem.weight, problem.target); }), right) <
        2e-2);
}

TEST_CASE("float64 within autocast stays float64") {
  const LossProblem problem({5});
  const LossAutocast autocast(at::kBFloat16);
  CHECK((linear_cross_entropy(problem.x, problem.weight, problem.target).scalar_type() == at::kDouble));
}

TEST_CASE("retain_graph: each backward has the same gradients, the last one too, and one more is refused") {
  const LossProblem problem({6});
  for (const auto reduction : {Reduction::mean, Reduction::none}) {
    const at::Tensor loss = linear_cross_entropy(problem.x, problem.weight, problem.target,
                                                 {.bias = problem.bias, .reduction = reduction, .max_bytes = 200});
    const at::Tensor total = loss.sum();
    std::vector<std::vector<at::Tensor>> seen;
    for (const bool retain : {true, true, false}) {
      for (const at::Tensor& leaf : problem.leaves()) leaf.mutable_grad() = at::Tensor();
      total.backward({}, retain);
      seen.push_back({problem.x.grad().clone(), problem.weight.grad().clone(), problem.bias.grad().clone()});
    }
    for (size_t i = 0; i < 3; ++i) {
      CHECK(torch::equal(seen[1][i], seen[0][i]));
      CHECK(torch::equal(seen[2][i], seen[0][i]));
    }
    CHECK_THROWS_WITH_AS(total.backward(), doctest::Contains("backward through the graph a second time"), c10::Error);
  }
}

TEST_CASE("a second backward through the loss alone is refused after the first released the gradients") {
  const LossProblem problem({6});
  const at::Tensor loss = linear_cross_entropy(problem.x, problem.weight, problem.target);
  loss.backward();
  CHECK_THROWS_WITH_AS(loss.backward(), doctest::Contains("backward through the graph a second time"), c10::Error);
}

TEST_CASE("autograd::grad for one input computes that input's gradient alone") {
  const LossProblem problem({6});
  const auto right = loss_gradients(stock_loss(problem.x, problem.weight, problem.target, {}), problem.leaves(),
                                    torch::ones({}, at::kDouble));
  for (const auto reduction : {Reduction::mean, Reduction::none}) {
    const at::Tensor loss =
        linear_cross_entropy(problem.x, problem.weight, problem.target, {.reduction = reduction}).mean();
    CHECK(close(torch::autograd::grad({loss}, {problem.weight}, {}, true)[0], right[1]));
    CHECK(close(torch::autograd::grad({loss}, {problem.x})[0], right[0]));
  }
}

TEST_CASE("backward on another thread has the same gradients") {
  const LossProblem problem({6});
  const auto right = loss_gradients(stock_loss(problem.x, problem.weight, problem.target, {}), problem.leaves(),
                                    torch::ones({}, at::kDouble));
  for (const at::Tensor& leaf : problem.leaves()) leaf.mutable_grad() = at::Tensor();
  const at::Tensor loss = linear_cross_entropy(problem.x, problem.weight, problem.target);
  std::thread([&] { loss.backward(); }).join();
  CHECK(close(problem.x.grad(), right[0]));
  CHECK(close(problem.weight.grad(), right[1]));
}

TEST_CASE("a weight that is the embedding too gets both gradients, within checkpoint() and in a script too") {
  const at::Tensor weight = numbers({LossProblem::kClasses, LossProblem::kFeatures}, 2).requires_grad_(true);
  const at::Tensor tokens = LossProblem({4, 3}).target, next = tokens.roll(1);
  torch::jit::Module script("Embedding");
  script.register_parameter("weight", weight, /*is_buffer=*/false);
  script.define("def forward(self, tokens):\n    return torch.embedding(self.weight, tokens).tanh()\n");
  const auto embedded = [&](const at::Tensor& table) { return torch::embedding(table, tokens).tanh(); };
  const at::Tensor one = torch::ones({}, at::kDouble);
  const auto right = loss_gradients(stock_loss(embedded(weight), weight, next, {}), {weight}, one)[0];

  CHECK(close(loss_gradients(linear_cross_entropy(embedded(weight), weight, next), {weight}, one)[0], right));
  const at::Tensor of_script = script.attr("weight").toTensor();
  const at::Tensor hidden = script.forward({tokens}).toTensor();
  CHECK(close(loss_gradients(linear_cross_entropy(hidden, of_script, next), {weight}, one)[0], right));
  for (const auto reduction : {Reduction::mean, Reduction::none}) {
    const at::Tensor loss = accelerate::nn::checkpoint(
        [&](const at::Tensor& table) {
          return linear_cross_entropy(embedded(table), table, next, {.reduction = reduction}).mean();
        },
        weight);
    CHECK(close(loss_gradients(loss, {weight}, one)[0], right));
  }
}
