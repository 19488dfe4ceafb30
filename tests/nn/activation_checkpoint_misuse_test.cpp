// SPDX-License-Identifier: Apache-2.0
#include "tests/nn/support.hpp"
//
#include <ATen/autocast_mode.h>

#include <thread>

using namespace nn_testing;
using accelerate::nn::checkpoint;
using accelerate::nn::recomputing;

namespace {

at::Tensor small_leaf(int64_t seed) { return numbers({3}, seed).requires_grad_(true); }

}  // namespace

TEST_CASE("a changed leaf between forward and backward is refused") {
  const at::Tensor x = small_leaf(1), w = small_leaf(2);
  const at::Tensor y = checkpoint([&](const at::Tensor& in) { return in * w; }, x);
  {
    const torch::NoGradGuard no_grad;
    w.add_(1);
  }
  CHECK_THROWS_WITH_AS(y.sum().backward(),
                       "checkpoint: a leaf [3] Double that the function uses was changed in place between forward and "
                       "backward, so it cannot run again as it did; step the optimizer after backward",
                       accelerate::Error);
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("a changed input is refused: by the function at once, later by LibTorch in backward") {
  const at::Tensor x = small_leaf(1);
  const at::Tensor copy = x * 1;
  CHECK_THROWS_WITH_AS(checkpoint([](at::Tensor in) { return in.add_(1) * 2; }, copy),
                       "checkpoint: the function changed its input 0 in place ([3] Double), so it cannot be recomputed "
                       "from its inputs; let it work on a copy",
                       accelerate::Error);
  const at::Tensor mine = x * 1;
  const at::Tensor y = checkpoint([](const at::Tensor& in) { return in.sin(); }, mine);
  {
    const torch::NoGradGuard no_grad;
    mine.add_(1);
  }
  CHECK_THROWS_WITH_AS(y.sum().backward(), doctest::Contains("modified by an inplace operation"), c10::Error);
}

TEST_CASE("a recompute with other shapes, dtypes, numbers of results or tensors is refused") {
  const at::Tensor x = small_leaf(1), w = small_leaf(2);
  const at::Tensor between = w.exp();
  const std::string rest = "; it must compute the same from the same inputs";
  const std::string other = ", on this thread (of a DataParallel checkpoint the parts of its module)";
  const auto check = [&](const auto& function, const std::string& text, const std::string& end = {}) {
    const at::Tensor y = checkpoint(function, x)[0];
    CHECK_THROWS_WITH_AS(y.sum().backward(), ("checkpoint: " + text + rest + end).c_str(), accelerate::Error);
  };
  using List = std::vector<at::Tensor>;
  check([](const at::Tensor& in) { return List{recomputing() ? in.narrow(0, 0, 2) : in * 1}; },
        "output 0 of the function was [3] Double in forward and is [2] Double in its second run, in backward");
  check([](const at::Tensor& in) { return List{recomputing() ? in.detach() : in * 1}; },
        "output 0 of the function was [3] Double in forward and is [3] Double without gradient in its second run, in "
        "backward");
  check(
      [](const at::Tensor& in) {
        return recomputing() ? List{in * 1} : List{in * 1, in.to(at::kFloat)};
      },
      "output 1 of the function was [3] Float in forward and is missing in its second run, in backward");
  check([&](const at::Tensor& in) { return List{recomputing() ? in * w : in * 1}; },
        "in its second run, in backward, the function used a leaf [3] Double that it had not used in forward", other);
  check([&](const at::Tensor& in) { return List{recomputing() ? in * between : in * 1}; },
        "in its second run, in backward, the function used a result of ExpBackward0 that it had not used in forward",
        other);
}

TEST_CASE(
    "an exception in forward or recompute propagates, and random state, autocast and recomputing() are restored") {
  const at::Tensor x = small_leaf(1);
  const auto fails_in = [&](bool second) {
    return [second](const at::Tensor& in) {
      const at::Tensor y = torch::dropout(in, 0.5, true);
      if (recomputing() == second) throw std::logic_error("no memory, say");
      return y;
    };
  };
  CHECK_THROWS_WITH_AS(checkpoint(fails_in(false), x), "no memory, say", std::logic_error);
  const at::Tensor y = checkpoint(fails_in(true), x);
  const at::Tensor before = at::detail::getDefaultCPUGenerator().get_state();
  at::autocast::set_autocast_enabled(at::kCPU, true);  // the state of backward's thread
  CHECK_THROWS_WITH_AS(y.sum().backward(), "no memory, say", std::logic_error);
  CHECK(at::autocast::is_autocast_enabled(at::kCPU));
  at::autocast::set_autocast_enabled(at::kCPU, false);
  CHECK(at::autocast::is_autocast_cache_enabled());
  CHECK(torch::equal(at::detail::getDefaultCPUGenerator().get_state(), before));
  CHECK_FALSE(recomputing());
}

TEST_CASE("tensors of another thread's graph are distinguished from the function's own") {
  at::Tensor made;
  const at::Tensor x = small_leaf(1);
  std::thread([&] {
    for (int i = 0; i < 100; ++i) (void)x.sin();  // advances the node numbers far beyond this thread's
    made = x.exp();
  }).join();
  const at::Tensor captured = made;
  const at::Tensor y = checkpoint([&](const at::Tensor& in) { return in * captured; }, made);
  (y.sum() + made.sum()).backward();
  const at::Tensor e = x.detach().exp();
  CHECK(close(x.grad(), 2 * e * e + e));
}

TEST_CASE("the graph before a checkpoint does not change, and a backward from another thread works") {
  const at::Tensor x = small_leaf(1);
  const at::Tensor before = x.exp();
  const at::Tensor y = checkpoint([](const at::Tensor& in) { return in.sin(); }, before);
  std::thread([&] { y.sum().backward({}, /*retain_graph=*/true); }).join();
  const at::Tensor once = x.grad().clone();
  y.sum().backward();
  CHECK(close(x.grad(), 2 * once));
  CHECK(close(once, before.detach() * before.detach().cos()));
}
