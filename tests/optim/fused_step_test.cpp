// SPDX-License-Identifier: Apache-2.0
#include "tests/optim/steps.hpp"
//
#include <sys/mman.h>
#include <sys/resource.h>

#include <sstream>

using accelerate::optim::FusedStep;
using namespace optim_testing;

namespace {

// Runs unfused and fused steps on equal gradients. Cases that the kernels reject run unfused, as in prepare(). Returns
// their number.
template <typename Gradients>
int64_t refused_steps(const Make& make, int64_t steps, const Parameters& stock, const Parameters& ours,
                      const Gradients& set) {
  auto stock_optimizer = make(stock), our_optimizer = make(ours);
  auto fused = FusedStep::for_optimizer(*our_optimizer);
  REQUIRE(fused);
  int64_t refused = 0;
  for (int64_t step = 0; step < steps; ++step) {
    set(stock, step);
    set(ours, step);
    stock_optimizer->step();
    if (fused->step()) continue;
    ++refused;
    our_optimizer->step();
  }
  return refused;
}

// Number of page faults of this thread, or of all threads.
int64_t page_faults(decltype(RUSAGE_SELF) scope) {
  rusage usage{};
  getrusage(scope, &usage);
  return usage.ru_minflt;
}

/// One optimizer of each type, and an SGD whose first step differs from later ones.
std::vector<Make> with_dampening() {
  std::vector<Make> makes = one_of_each();
  makes.push_back(sgd(torch::optim::SGDOptions(0.1).momentum(0.9).dampening(0.5)));
  return makes;
}

struct WithThreads {
  explicit WithThreads(int count) : before(at::get_num_threads()) { at::set_num_threads(count); }
  ~WithThreads() { at::set_num_threads(before); }
  int before;
};

}  // namespace

TEST_CASE("tensors with another layout than their parameter are stepped by the stock optimizer") {
  for (const Make& make : one_of_each()) {
    // A leaf that is a slice: columns of other tensors are between its columns.
    const auto slice_of = [](const at::Tensor& whole) { return whole.narrow(1, 1, 2).detach().requires_grad_(); };
    const at::Tensor stock_whole = torch::arange(20.0, at::kDouble).view({4, 5}), our_whole = stock_whole.clone();
    CHECK(refused_steps(make, 3, {slice_of(stock_whole)}, {slice_of(our_whole)}, set_gradients) == 3);
    CHECK(torch::equal(stock_whole, our_whole));
  }
  for (const Make& make : one_of_each()) {
    const Parameters stock = parameters(), ours = parameters();
    const auto set_transposed_in_step_1 = [](const Parameters& list, int64_t step) {
      const at::Tensor plain = torch::arange(list[0].numel(), at::kDouble).view(list[0].sizes());
      list[0].mutable_grad() = step == 1 ? plain.t().contiguous().t() : plain;
    };
    CHECK(refused_steps(make, 3, stock, ours, set_transposed_in_step_1) == 1);
    CHECK(largest_difference(stock, ours) < 1e-12);
  }
}

TEST_CASE("a loaded state with other strides gets its parameter's layout") {
  const Parameters stock = parameters(), ours = parameters();
  torch::optim::AdamW stock_optimizer(stock, 0.01), our_optimizer(ours, 0.01);
  auto fused = FusedStep::for_optimizer(our_optimizer);
  for (int64_t step = 0; step < 3; ++step) {
    set_gradients(stock, step);
    set_gradients(ours, step);
    stock_optimizer.step();
    REQUIRE(fused->step());
    auto& state = static_cast<torch::optim::AdamWParamState&>(*our_optimizer.state().at(ours[0].unsafeGetTensorImpl()));
    state.exp_avg(state.exp_avg().t().contiguous().t());
  }
  CHECK(largest_difference(stock, ours) < 1e-12);
}

TEST_CASE("a parameter without gradient is skipped and keeps its own step count") {
  const Parameters stock = parameters(), ours = parameters();
  torch::optim::AdamW stock_optimizer(stock, 0.01), our_optimizer(ours, 0.01);
  auto fused = FusedStep::for_optimizer(our_optimizer);
  for (int64_t step = 0; step < 6; ++step) {
    set_gradients(stock, step);
    set_gradients(ours, step);
    if (step % 2 == 1) stock[1].mutable_grad().reset(), ours[1].mutable_grad().reset();
    stock_optimizer.step();
    CHECK(fused->step());
  }
  CHECK(largest_difference(stock, ours) < 1e-12);
}

TEST_CASE("groups keep their own options, and options may change between steps") {
  const auto run = [](bool use_fused) {
    const Parameters list = parameters();
    torch::optim::SGD optimizer(
        {torch::optim::OptimizerParamGroup({list[0]}), torch::optim::OptimizerParamGroup({list[1], list[2]})},
        torch::optim::SGDOptions(0.1));
    static_cast<torch::optim::SGDOptions&>(optimizer.param_groups()[1].options()).lr(0.5).momentum(0.5);
    auto fused = FusedStep::for_optimizer(optimizer);
    for (int64_t step = 0; step < 4; ++step) {
      set_gradients(list, step);
      optimizer.param_groups()[0].options().set_lr(0.1 / static_cast<double>(step + 1));
      if (use_fused) {
        CHECK(fused->step());
      } else {
        optimizer.step();
      }
    }
    return list;
  };
  CHECK(largest_difference(run(true), run(false)) < 1e-12);
}

TEST_CASE("float32 and bfloat16 parameters step together") {
  const Parameters list{torch::ones({4}).requires_grad_(), torch::ones({4}, at::kBFloat16).requires_grad_()};
  torch::optim::AdamW optimizer(list, 0.1);
  auto fused = FusedStep::for_optimizer(optimizer);
  for (const auto& parameter : list) parameter.mutable_grad() = torch::ones_like(parameter);
  CHECK(fused->step());
  CHECK(list[0][0].item<double>() == doctest::Approx(0.899).epsilon(1e-3));
  CHECK(list[1][0].item<double>() == doctest::Approx(0.899).epsilon(1e-2));
}

TEST_CASE("stock and fused steps alternate on one state, and saved state continues") {
  const Parameters stock = parameters(), ours = parameters();
  torch::optim::AdamW stock_optimizer(stock, 0.01), first(ours, 0.01), second(ours, 0.01);
  auto fused = FusedStep::for_optimizer(first);
  for (int64_t step = 0; step < 4; ++step) {
    set_gradients(stock, step);
    set_gradients(ours, step);
    stock_optimizer.step();
    if (step % 2 == 0) {
      CHECK(fused->step());
    } else {
      first.step();
    }
  }
  std::stringstream file;
  torch::save(first, file);
  torch::load(second, file);
  auto resumed = FusedStep::for_optimizer(second);
  set_gradients(stock, 9);
  set_gradients(ours, 9);
  stock_optimizer.step();
  CHECK(resumed->step());
  CHECK(largest_difference(stock, ours) < 1e-12);
}

TEST_CASE("gradients that the kernels do not support are refused before anything changes") {
  const Parameters list{torch::ones({3, 2}).requires_grad_(), torch::ones({2}).requires_grad_()};
  torch::optim::SGD optimizer(list, 0.1);
  auto fused = FusedStep::for_optimizer(optimizer);
  list[0].mutable_grad() = torch::ones({3, 2});
  list[1].mutable_grad() = torch::ones({2}).to_sparse();
  CHECK_FALSE(fused->step());
  CHECK(list[0].equal(torch::ones({3, 2})));
}

TEST_CASE("other optimizers, subclasses included, keep their own step") {
  struct MySgd : torch::optim::SGD {
    using SGD::SGD;
  };
  const Parameters list = parameters();
  torch::optim::LBFGS lbfgs(list, 0.1);
  MySgd mine(list, torch::optim::SGDOptions(0.1));
  CHECK_FALSE(FusedStep::for_optimizer(lbfgs));
  CHECK_FALSE(FusedStep::for_optimizer(mine));
}

TEST_CASE("a step releases its references to gradients") {
  const Parameters list = parameters();
  torch::optim::AdamW optimizer(list, 0.01);
  auto fused = FusedStep::for_optimizer(optimizer);
  set_gradients(list, 0);
  CHECK(fused->step());
  CHECK(list[0].grad().use_count() == 1);
}

TEST_CASE("gradients are divided by the scale, in place") {
  for (const Make& make : one_of_each()) {
    const Parameters stock = parameters(), ours = parameters();
    auto stock_optimizer = make(stock), our_optimizer = make(ours);
    auto fused = FusedStep::for_optimizer(*our_optimizer);
    for (int64_t step = 0; step < 3; ++step) {
      set_gradients(stock, step);
      set_gradients(ours, step);
      for (const auto& parameter : ours) parameter.mutable_grad().mul_(1024);
      stock_optimizer->step();
      REQUIRE(fused->step({.scale = torch::tensor(1024.0F), .skip = torch::tensor(0.0F)}));
      CHECK(torch::equal(ours[0].grad(), stock[0].grad()));
    }
    CHECK(largest_difference(stock, ours) < 1e-12);
  }
}

TEST_CASE("a step with the skip flag set changes no parameter and no state, and does not count") {
  for (const Make& make : with_dampening()) {
    const Parameters stock = parameters(), ours = parameters();
    auto stock_optimizer = make(stock), our_optimizer = make(ours);
    auto fused = FusedStep::for_optimizer(*our_optimizer);
    for (const bool skip : {true, false, true, false}) {
      set_gradients(stock, skip ? 1 : 2);
      set_gradients(ours, skip ? 1 : 2);
      if (!skip) stock_optimizer->step();
      REQUIRE(fused->step({.skip = torch::tensor(skip ? 1.0F : 0.0F)}));
      CHECK(largest_difference(stock, ours) < 1e-12);
    }
    fused->discard_skipped_steps();
    set_gradients(stock, 3);
    set_gradients(ours, 3);
    stock_optimizer->step();
    our_optimizer->step();
    CHECK(largest_difference(stock, ours) < 1e-12);
  }
}

TEST_CASE("a skipped first step leaves a state that the stock step accepts") {
  for (const Make& make : with_dampening()) {
    const Parameters stock = parameters(), ours = parameters();
    auto stock_optimizer = make(stock), our_optimizer = make(ours);
    auto fused = FusedStep::for_optimizer(*our_optimizer);
    for (const Parameters& list : {stock, ours}) set_gradients(list, 1);
    REQUIRE(fused->step({.skip = torch::tensor(1.0F)}));
    our_optimizer->step();
    stock_optimizer->step();
    CHECK(largest_difference(stock, ours) < 1e-12);
  }
}

TEST_CASE("a step can be repeated after a kernel threw, and updates once") {
  for (const Make& make : one_of_each()) {
    const auto float8 = torch::zeros({4}).to(torch::kFloat8_e5m2).requires_grad_();  // no kernel supports it
    Parameters ours = parameters(), stock = parameters();
    ours.insert(ours.begin(), float8);
    stock.insert(stock.begin(), float8);
    auto stock_optimizer = make(stock), our_optimizer = make(ours);
    auto fused = FusedStep::for_optimizer(*our_optimizer);
    set_gradients({ours.begin() + 1, ours.end()}, 0);
    set_gradients({stock.begin() + 1, stock.end()}, 0);
    float8.mutable_grad() = torch::zeros({4}).to(torch::kFloat8_e5m2);
    CHECK_THROWS(fused->step());
    float8.mutable_grad().reset();
    REQUIRE(fused->step());
    stock_optimizer->step();
    CHECK(largest_difference({stock.begin() + 1, stock.end()}, {ours.begin() + 1, ours.end()}) < 1e-12);
  }
}

TEST_CASE("RMSprop splits parameters among LibTorch's threads with the bits of one thread") {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    std::vector<Parameters> results;
    for (const int threads : {1, 2, 3}) {
      const WithThreads with(threads);
      torch::manual_seed(3);
      Parameters list{torch::randn({211, 1009}, dtype).requires_grad_(), torch::empty({0}, dtype).requires_grad_()};
      for (int i = 0; i < 40; ++i) list.push_back(torch::randn({1 + 97 * i}, dtype).requires_grad_());
      torch::optim::RMSprop optimizer(list, torch::optim::RMSpropOptions(0.01).momentum(0.9).centered(true));
      auto fused = FusedStep::for_optimizer(optimizer);
      for (int64_t step = 0; step < 3; ++step) {
        set_gradients(list, step);
        REQUIRE(fused->step({.scale = torch::tensor(4.0F)}));
      }
      results.push_back(list);
    }
    for (const Parameters& others : {results[1], results[2]}) {
      // A centred variance may round below 0 in 16 bits, which gives NaN in LibTorch's step, too.
      for (size_t i = 0; i < others.size(); ++i) {
        CHECK(torch::allclose(results[0][i], others[i], /*rtol=*/0, /*atol=*/0, /*equal_nan=*/true));
      }
    }
  }
}

TEST_CASE("a second thread writes half of RMSprop's memory if LibTorch has two threads") {
  const WithThreads two(2);
  constexpr int64_t bytes = 32 << 20;
  const int64_t pages = bytes / getpagesize();
  void* const fresh = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(fresh != MAP_FAILED);
  REQUIRE(madvise(fresh, bytes, MADV_NOHUGEPAGE) == 0);
  {
    const at::Tensor parameter = torch::ones({bytes / 4}).requires_grad_();
    torch::optim::RMSprop optimizer({parameter}, 0.01);
    auto state = std::make_unique<torch::optim::RMSpropParamState>();
    state->square_avg(torch::from_blob(fresh, {bytes / 4}));
    optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
    auto fused = FusedStep::for_optimizer(optimizer);
    parameter.mutable_grad() = torch::ones_like(parameter);
    const auto all_before = page_faults(RUSAGE_SELF), own_before = page_faults(RUSAGE_THREAD);
    REQUIRE(fused->step());
    const auto all = page_faults(RUSAGE_SELF) - all_before, own = page_faults(RUSAGE_THREAD) - own_before;
    CHECK(all >= pages);
    CHECK(own < all * 3 / 4);
    CHECK(torch::equal(parameter.detach(), torch::full({bytes / 4}, parameter[0].item<float>())));
  }
  munmap(fresh, bytes);
}

TEST_CASE("a backward that saved a parameter detects that a step has changed it") {
  for (const Make& make : one_of_each()) {
    const Parameters ours = parameters();
    auto optimizer = make(ours);
    auto fused = FusedStep::for_optimizer(*optimizer);
    const at::Tensor loss = (ours[0] * ours[0]).sum();
    set_gradients(ours, 0);
    REQUIRE(fused->step());
    CHECK_THROWS_WITH_AS(loss.backward(), doctest::Contains("modified by an inplace operation"), c10::Error);
  }
}

TEST_CASE("a gradient with a negative bit is stepped by the stock optimizer") {
  const at::Tensor parameter = torch::ones({1}).requires_grad_();
  torch::optim::RMSprop optimizer({parameter}, 0.01);
  auto fused = FusedStep::for_optimizer(optimizer);
  parameter.mutable_grad() = at::imag(torch::complex(torch::ones({1}), torch::ones({1})).conj());
  REQUIRE(parameter.grad().is_neg());
  CHECK_FALSE(fused->step());
  optimizer.step();
  CHECK(parameter.item<double>() > 1.0);
}
