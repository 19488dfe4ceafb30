// SPDX-License-Identifier: Apache-2.0
// Fused steps on pieces: some of the parameters, in any order, ranges of them, and masters in float32.
#include <limits>
#include <sstream>

#include "tests/optim/steps.hpp"

using accelerate::optim::FusedStep;
using accelerate::state::ParameterShard;
using namespace optim_testing;

TEST_CASE("steps bucket by bucket, in another order than the groups', equal one step of all") {
  for (const Make& make : one_of_each()) {
    const Parameters whole = parameters(), parts = parameters();
    auto all = make(whole), by_bucket = make(parts);
    auto fused_all = FusedStep::for_optimizer(*all), fused = FusedStep::for_optimizer(*by_bucket);
    for (int64_t step = 0; step < 5; ++step) {
      set_gradients(whole, step);
      set_gradients(parts, step);
      const auto parameter_shards = shards_of(parts);
      REQUIRE(fused_all->step());
      REQUIRE(fused->step(std::vector{parameter_shards[2], parameter_shards[1]}));
      REQUIRE(fused->step(std::span(parameter_shards).first(1)));
      CHECK(largest_difference(whole, parts) == 0);
    }
  }
}

TEST_CASE("each parameter has its own step count, and parameter shards use their group's options") {
  const Parameters stock = parameters(), ours = parameters();
  const auto make_two_groups = [](const Parameters& list) {
    auto made = std::make_unique<torch::optim::Adam>(Parameters{list[0]}, torch::optim::AdamOptions(0.01));
    made->add_param_group(torch::optim::OptimizerParamGroup(
        {list[1], list[2]}, std::make_unique<torch::optim::AdamOptions>(torch::optim::AdamOptions(0.1).amsgrad(true))));
    return made;
  };
  auto stock_optimizer = make_two_groups(stock), our_optimizer = make_two_groups(ours);
  auto fused = FusedStep::for_optimizer(*our_optimizer);
  for (int64_t step = 0; step < 6; ++step) {
    set_gradients(stock, step);
    set_gradients(ours, step);
    // The last parameter only steps every other time.
    if (step % 2 == 1) stock[2].mutable_grad().reset();
    stock_optimizer->step();
    const auto parameter_shards = shards_of(ours);
    REQUIRE(fused->step(step % 2 == 1 ? std::vector{parameter_shards[1], parameter_shards[0]}
                                      : std::vector{parameter_shards[2], parameter_shards[0], parameter_shards[1]}));
  }
  CHECK(largest_difference(stock, ours) < 1e-12);
}

TEST_CASE("parameters that user code moves to another group use its options from the next step") {
  const Parameters list = parameters();
  torch::optim::SGD optimizer({list[0]}, torch::optim::SGDOptions(0.0));
  optimizer.add_param_group(torch::optim::OptimizerParamGroup(
      {list[1]}, std::make_unique<torch::optim::SGDOptions>(torch::optim::SGDOptions(1.0))));
  auto fused = FusedStep::for_optimizer(optimizer);
  const auto moved_by = [&](size_t i, bool as_pieces) {
    const at::Tensor before = list[i].detach().clone();
    for (const at::Tensor& parameter : {list[0], list[1]}) parameter.mutable_grad() = torch::ones_like(parameter);
    REQUIRE(as_pieces ? fused->step(std::vector{shards_of(list)[1], shards_of(list)[0]}) : fused->step());
    return (before - list[i].detach()).abs().max().item<double>();
  };
  for (const bool as_pieces : {false, true}) {
    CHECK(moved_by(0, as_pieces) == 0);
    CHECK(moved_by(1, as_pieces) == doctest::Approx(1));
    std::swap(optimizer.param_groups()[0].params(), optimizer.param_groups()[1].params());
    CHECK(moved_by(0, as_pieces) == doctest::Approx(1));
    CHECK(moved_by(1, as_pieces) == 0);
    std::swap(optimizer.param_groups()[0].params(), optimizer.param_groups()[1].params());
  }
}

TEST_CASE("state that is loaded between two fused steps is used") {
  for (const Make& make : one_of_each()) {
    const Parameters ours = parameters(), theirs = parameters();
    auto optimizer = make(ours), other = make(theirs);
    auto fused = FusedStep::for_optimizer(*optimizer), fused_other = FusedStep::for_optimizer(*other);
    for (int64_t step = 0; step < 2; ++step) {
      set_gradients(ours, 50 + step);  // overwritten by the load
      set_gradients(theirs, step);
      REQUIRE(fused->step());
      REQUIRE(fused_other->step());
    }
    std::stringstream file;
    torch::save(*other, file);
    torch::load(*optimizer, file);
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < ours.size(); ++i) ours[i].copy_(theirs[i]);
    for (int64_t step = 2; step < 4; ++step) {
      set_gradients(ours, step);
      set_gradients(theirs, step);
      REQUIRE(fused->step());
      REQUIRE(fused_other->step());
    }
    CHECK(largest_difference(ours, theirs) == 0);
  }
}

TEST_CASE("a range of a parameter is updated like the whole, with a state of the range's size") {
  for (const Make& make : one_of_each()) {
    const at::Tensor whole = torch::linspace(-1, 1, 10, at::kDouble).requires_grad_();
    const at::Tensor sharded = whole.detach().clone().requires_grad_();
    auto stock = make({whole}), ours = make({sharded});
    ours->state().clear();  // Adagrad creates state for the whole parameter
    auto fused = FusedStep::for_optimizer(*ours);
    const at::Tensor mine = sharded.detach().narrow(0, 3, 4).clone();
    for (int64_t step = 0; step < 3; ++step) {
      set_gradients({whole}, step);
      const ParameterShard param_shard{.name = "w",
                                       .sizes = {10},
                                       .begin = 3,
                                       .end = 7,
                                       .key = sharded.unsafeGetTensorImpl(),
                                       .value = mine,
                                       .gradient = whole.grad().narrow(0, 3, 4).clone()};
      stock->step();
      REQUIRE(fused->step(std::vector{param_shard}));
    }
    CHECK(torch::allclose(mine, whole.detach().narrow(0, 3, 4), 0, 1e-12));
    CHECK(torch::equal(sharded.detach(), torch::linspace(-1, 1, 10, at::kDouble)));
  }
}

TEST_CASE("a bfloat16 parameter with a float32 master keeps updates below its resolution") {
  for (const Make& make : one_of_each()) {
    const at::Tensor exact = torch::full({4}, 8.0).requires_grad_();
    const at::Tensor rounded = torch::full({4}, 8.0, at::kBFloat16).requires_grad_();
    const at::Tensor master = torch::full({4}, 8.0);
    auto stock = make({exact}), ours = make({rounded});
    auto fused = FusedStep::for_optimizer(*ours);
    for (int64_t step = 0; step < 3; ++step) {
      exact.mutable_grad() = torch::full({4}, 0.0625);  // exact in both dtypes
      rounded.mutable_grad() = torch::full({4}, 0.0625, at::kBFloat16);
      stock->step();
      auto parameter_shards = shards_of({rounded});
      parameter_shards[0].master = master;
      REQUIRE(fused->step(parameter_shards));
    }
    CHECK(torch::allclose(master, exact.detach(), 0, 1e-6));
    CHECK(master[0].item<double>() < 8.0);
    CHECK(torch::equal(rounded.detach(), master.to(at::kBFloat16)));
  }
}

TEST_CASE("gradients in the dtypes of the value and of the master, of any layout, step together and are unchanged") {
  for (const Make& make : one_of_each()) {
    const at::Tensor start = torch::arange(6.0).view({2, 3}), gradient = (start - 2) / 8;  // exact in both dtypes
    Parameters exact, rounded, masters, gradients;
    for (int i = 0; i < 3; ++i) {
      const auto like = [&](const at::Tensor& tensor) { return i == 1 ? tensor.t().contiguous().t() : tensor.clone(); };
      exact.push_back(like(start).requires_grad_());
      rounded.push_back(like(start.to(at::kBFloat16)).requires_grad_());
      masters.push_back(like(start));
      gradients.push_back(like(i == 2 ? gradient : gradient.to(at::kBFloat16)));
    }
    auto stock = make(exact), ours = make(rounded);
    auto fused = FusedStep::for_optimizer(*ours);
    for (int step = 0; step < 3; ++step) {
      auto parameter_shards = shards_of(rounded);
      for (size_t i = 0; i < 3; ++i) {
        exact[i].mutable_grad() = gradients[i].to(at::kFloat);
        parameter_shards[i].master = masters[i];
        parameter_shards[i].gradient = gradients[i];
      }
      stock->step();
      REQUIRE(fused->step(parameter_shards));
    }
    for (size_t i = 0; i < 3; ++i) {
      CHECK(torch::allclose(masters[i], exact[i].detach(), 0, 1e-6));
      CHECK(torch::equal(rounded[i].detach(), masters[i].to(at::kBFloat16)));
      CHECK(torch::equal(gradients[i].to(at::kFloat), gradient));
    }
  }
}

TEST_CASE("a parameter without master beside others with masters changes for autograd too") {
  const at::Tensor rounded = torch::ones({4}, at::kBFloat16).requires_grad_(), own = torch::ones({4}).requires_grad_();
  torch::optim::AdamW optimizer({rounded, own}, 0.1);
  auto fused = FusedStep::for_optimizer(optimizer);
  const at::Tensor of_rounded = (rounded * rounded).sum(), of_own = (own * own).sum();
  rounded.mutable_grad() = torch::ones({4}, at::kBFloat16);
  own.mutable_grad() = torch::ones({4});
  auto parameter_shards = shards_of({rounded, own});
  parameter_shards[0].master = torch::ones({4});
  REQUIRE(fused->step(parameter_shards));
  for (const at::Tensor& loss : {of_rounded, of_own}) {
    CHECK_THROWS_WITH_AS(loss.backward(), doctest::Contains("modified by an inplace operation"), c10::Error);
  }
}

TEST_CASE("a skipped step with masters changes neither master nor value") {
  const at::Tensor value = torch::ones({3}, at::kBFloat16).requires_grad_();
  torch::optim::AdamW optimizer({value}, 0.1);
  auto fused = FusedStep::for_optimizer(optimizer);
  value.mutable_grad() = torch::full({3}, std::numeric_limits<float>::infinity(), at::kBFloat16);
  auto parameter_shards = shards_of({value});
  parameter_shards[0].master = torch::ones({3});
  REQUIRE(fused->step(parameter_shards, {.skip = torch::tensor(1.0F)}));
  CHECK(torch::equal(parameter_shards[0].master, torch::ones({3})));
  CHECK(torch::equal(value.detach(), torch::ones({3}, at::kBFloat16)));
}

TEST_CASE("a parameter shard outside the optimizer is refused by name, and nothing changes") {
  const Parameters list = parameters();
  const at::Tensor foreign = torch::ones({2}, at::kDouble).requires_grad_();
  torch::optim::SGD optimizer(list, torch::optim::SGDOptions(0.1));
  auto fused = FusedStep::for_optimizer(optimizer);
  set_gradients(list, 0);
  foreign.mutable_grad() = torch::ones_like(foreign);
  const auto before = list[0].detach().clone();
  auto parameter_shards = shards_of({list[0], foreign});
  parameter_shards[1].name = "head.bias";
  CHECK_THROWS_WITH(fused->step(parameter_shards),
                    "optimizer.step: head.bias is not one of the optimizer's 3 parameters; give the optimizer the "
                    "parameter before it is stepped on");
  CHECK(torch::equal(list[0].detach(), before));
}

TEST_CASE("parameters added to Adagrad later start with its initial value; the stock optimizer refuses them") {
  const at::Tensor first = torch::ones({2}, at::kDouble).requires_grad_();
  const at::Tensor late = torch::ones({2}, at::kDouble).requires_grad_();
  torch::optim::Adagrad optimizer({first}, torch::optim::AdagradOptions(0.5).initial_accumulator_value(3.0).eps(0));
  optimizer.add_param_group(torch::optim::OptimizerParamGroup({late}));
  auto fused = FusedStep::for_optimizer(optimizer);
  late.mutable_grad() = torch::ones_like(late);
  REQUIRE(fused->step());
  CHECK(torch::allclose(late.detach(), torch::full({2}, 0.75, at::kDouble), 0, 1e-15));  // 1 - 0.5 / sqrt(3 + 1)
}
