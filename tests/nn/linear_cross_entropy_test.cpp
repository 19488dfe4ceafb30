// SPDX-License-Identifier: Apache-2.0
// linear_cross_entropy in float64 beside cross_entropy(linear(...)): values, gradients, memory.
#include "tests/nn/linear_cross_entropy.hpp"
//
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <mutex>

using namespace nn_testing;

namespace {

/// Bytes that CPU tensors of this thread and of the threads that work for it use, now and at most.
struct MemoryCount : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    const std::lock_guard lock(mutex);
    now += bytes;
    most = std::max(most, now);
  }
  [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }
  int64_t now = 0, most = 0;
  std::mutex mutex;
};

struct UsedMemory {
  int64_t now, most;
};

template <typename Work>
UsedMemory cpu_memory_of(const Work& work) {
  const auto count = std::make_shared<MemoryCount>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, count);
  [[maybe_unused]] const auto kept = work();
  return {.now = count->now, .most = count->most};
}

void check_like_libtorch(const LossProblem& problem, const LinearCrossEntropyOptions& options) {
  CAPTURE(describe_loss(options));
  const at::Tensor expected = stock_loss(problem.x, problem.weight, problem.target, options);
  const at::Tensor seen = linear_cross_entropy(problem.x, problem.weight, problem.target, options);
  CHECK(close(seen, expected));
  const at::Tensor upstream = numbers(expected.sizes(), 6) * 3;
  const auto right = loss_gradients(expected, problem.leaves(), upstream);
  const auto ours = loss_gradients(seen, problem.leaves(), upstream);
  for (size_t i = 0; i < right.size(); ++i) {
    CAPTURE(i);
    REQUIRE(right[i].defined() == ours[i].defined());
    if (right[i].defined()) CHECK(close(ours[i], right[i]));
  }
}

}  // namespace

TEST_CASE("every combination of options equals LibTorch's loss and gradients, in one chunk and in several") {
  const LossProblem problem({3, 5});
  const auto first_class = problem.target.flatten()[0].item<int64_t>();
  const auto all = all_loss_options(problem, first_class);
  CHECK(all.size() == 144);
  for (const auto& options : all) check_like_libtorch(problem, options);
}

TEST_CASE("x may have any leading shape: none, one dimension, several, an empty one") {
  for (const std::vector<int64_t>& leading : {std::vector<int64_t>{}, {7}, {2, 1, 3}, {0}, {2, 0}}) {
    const LossProblem problem(leading);
    for (const auto reduction : {Reduction::sum, Reduction::none}) {
      check_like_libtorch(problem, {.bias = problem.bias, .label_smoothing = 0.1, .reduction = reduction});
      check_like_libtorch(problem, {.class_weights = problem.class_weights, .reduction = reduction});
    }
  }
}

TEST_CASE("x, weight and target may be strided") {
  LossProblem problem({4, 5});
  problem.x = numbers({LossProblem::kFeatures, 5, 4}, 1).permute({2, 1, 0}).requires_grad_(true);
  problem.weight = numbers({LossProblem::kFeatures, LossProblem::kClasses}, 2).t().requires_grad_(true);
  problem.target = problem.target.t().contiguous().t();
  for (const auto reduction : {Reduction::mean, Reduction::none}) {
    check_like_libtorch(problem, {.bias = problem.bias, .reduction = reduction, .max_bytes = 200});
  }
}

TEST_CASE("without rows the mean is NaN and the gradients are 0, as with all rows ignored") {
  for (const std::vector<int64_t>& leading : {std::vector<int64_t>{0}, {3, 2}}) {
    const LossProblem problem(leading);
    problem.target.fill_(-1);
    for (const auto reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
      for (const double label_smoothing : {0.0, 0.2}) {
        for (const bool weighted : {false, true}) {
          const LinearCrossEntropyOptions options{.bias = problem.bias,
                                                  .class_weights = weighted ? problem.class_weights : at::Tensor(),
                                                  .ignore_index = -1,
                                                  .label_smoothing = label_smoothing,
                                                  .reduction = reduction};
          CAPTURE(describe_loss(options));
          const at::Tensor loss = linear_cross_entropy(problem.x, problem.weight, problem.target, options);
          if (reduction == Reduction::mean) CHECK(loss.isnan().item<bool>());
          if (reduction != Reduction::mean) CHECK(torch::equal(loss, torch::zeros_like(loss)));
          for (const at::Tensor& gradient : loss_gradients(loss, problem.leaves(), torch::ones_like(loss))) {
            CHECK(torch::equal(gradient, torch::zeros_like(gradient)));
          }
        }
      }
    }
  }
}

TEST_CASE("logits far beyond the range of exp() and a class that a bias excludes produce finite losses") {
  LossProblem problem({6});
  problem.x = (problem.x.detach() * 1e4).requires_grad_(true);
  const torch::NoGradGuard no_grad;
  problem.bias[3] = -std::numeric_limits<double>::infinity();
  problem.target.fill_(2);
  const LinearCrossEntropyOptions options{.bias = problem.bias};
  const at::Tensor seen = linear_cross_entropy(problem.x, problem.weight, problem.target, options);
  CHECK(std::isfinite(seen.item<double>()));
  CHECK(close(seen, stock_loss(problem.x, problem.weight, problem.target, options)));
}

TEST_CASE("only inputs that require a gradient have one") {
  for (const auto reduction : {Reduction::mean, Reduction::none}) {
    for (int wanted = 0; wanted < 8; ++wanted) {
      const LossProblem problem({6});
      problem.x.requires_grad_((wanted & 1) != 0);
      problem.weight.requires_grad_((wanted & 2) != 0);
      problem.bias.requires_grad_((wanted & 4) != 0);
      const LinearCrossEntropyOptions options{.bias = problem.bias, .reduction = reduction};
      const at::Tensor seen = linear_cross_entropy(problem.x, problem.weight, problem.target, options);
      CHECK(seen.requires_grad() == (wanted != 0));
      if (wanted != 0) check_like_libtorch(problem, options);
    }
  }
}

TEST_CASE("without gradients no intermediate tensor is kept, and the loss is the same") {
  const LossProblem problem({6});
  const double expected = linear_cross_entropy(problem.x, problem.weight, problem.target).item<double>();
  const auto check = [&] {
    for (const auto reduction : {Reduction::mean, Reduction::none}) {
      const at::Tensor loss = linear_cross_entropy(problem.x, problem.weight, problem.target, {.reduction = reduction});
      CHECK_FALSE(loss.requires_grad());
      CHECK(loss.mean().item<double>() == doctest::Approx(expected).epsilon(1e-14));
    }
  };
  {
    const torch::NoGradGuard no_grad;
    check();
  }
  const c10::InferenceMode inference;
  check();
}

TEST_CASE("several threads compute the losses and gradients of LibTorch, also in inference mode") {
  struct Threads {
    explicit Threads(int count) { at::set_num_threads(count); }
    ~Threads() { at::set_num_threads(before); }
    int before = at::get_num_threads();
  };
  const Threads threads(3);
  const int64_t rows = 70, classes = 20001, features = 3;  // 13 rows are one block
  LossProblem problem({rows});
  problem.x = numbers({rows, features}, 1).requires_grad_(true);
  problem.weight = numbers({classes, features}, 2).requires_grad_(true);
  problem.bias = numbers({classes}, 3).requires_grad_(true);
  problem.class_weights = numbers({classes}, 4).abs() + 0.25;
  problem.target = (numbers({rows}, 5).abs() * 100000).to(at::kLong).remainder(classes);
  for (const auto reduction : {Reduction::mean, Reduction::none}) {
    const LinearCrossEntropyOptions options{
        .bias = problem.bias, .class_weights = problem.class_weights, .label_smoothing = 0.1, .reduction = reduction};
    check_like_libtorch(problem, options);
    const at::Tensor expected = stock_loss(problem.x, problem.weight, problem.target, options).detach();
    const c10::InferenceMode inference;
    CHECK(close(linear_cross_entropy(problem.x, problem.weight, problem.target, options), expected));
  }
}

TEST_CASE("max_bytes limits the logits, and after the forward only gradients are kept") {
  const int64_t rows = 2048, classes = 4000, features = 4, logits = rows * classes * 4;
  const at::Tensor x = numbers({rows, features}, 1, at::kFloat).requires_grad_(true);
  const at::Tensor weight = numbers({classes, features}, 2, at::kFloat).requires_grad_(true);
  const at::Tensor target = torch::arange(rows).remainder(classes);
  const int64_t of_gradients = (rows + classes) * features * 4, small = int64_t{1} << 20;
  const auto forward = [&](const LinearCrossEntropyOptions& options) {
    return cpu_memory_of([&] { return linear_cross_entropy(x, weight, target, options); });
  };
  const UsedMemory whole = forward({});
  CHECK(whole.most >= logits);
  CHECK(whole.most < logits + of_gradients + small);
  CHECK(whole.now < of_gradients + small);
  const UsedMemory chunked = forward({.max_bytes = logits / 16});
  CHECK(chunked.most < logits / 16 + of_gradients + small);
  CHECK(cpu_memory_of([&] { return stock_loss(x, weight, target, {}); }).most >= 2 * logits);

  const at::Tensor each =
      linear_cross_entropy(x, weight, target, {.reduction = Reduction::none, .max_bytes = logits / 16});
  const UsedMemory backward = cpu_memory_of([&] {
    each.sum().backward();
    return 0;
  });
  CHECK(backward.most < logits / 16 + 2 * of_gradients + small);

  const torch::NoGradGuard no_grad;
  const UsedMemory evaluation = forward({.max_bytes = logits / 16});
  CHECK(evaluation.most < logits / 16 + small);
  CHECK(evaluation.now < 64);
}
