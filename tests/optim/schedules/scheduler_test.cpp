// SPDX-License-Identifier: Apache-2.0
// Values of all schedules are compared in parity.py.
#include "tests/testing.hpp"
//
#include "accelerate/base/error.hpp"
#include "accelerate/optim/schedules/constant.hpp"
#include "accelerate/optim/schedules/cosine_annealing.hpp"
#include "accelerate/optim/schedules/cosine_with_warmup.hpp"
#include "accelerate/optim/schedules/cyclic.hpp"
#include "accelerate/optim/schedules/lambda.hpp"
#include "accelerate/optim/schedules/linear_with_warmup.hpp"
#include "accelerate/optim/schedules/one_cycle.hpp"
#include "accelerate/optim/schedules/step.hpp"
#include "tests/optim/schedules/support.hpp"

using namespace accelerate::optim;
using Rates = std::vector<double>;

TEST_CASE("LambdaLR multiplies the first rate by the factor of the steps made") {
  auto optimizer = sgd(2.0);
  LambdaLR scheduler(optimizer, [](int64_t steps) { return 1.0 - static_cast<double>(steps) / 4.0; });
  CHECK(rates(scheduler, 4) == Rates{2.0, 1.5, 1.0, 0.5, 0.0});
  CHECK(scheduler.steps() == 4);
}

TEST_CASE("LambdaLR accepts one function per parameter group") {
  auto optimizer = sgd({1.0, 10.0});
  const auto falling = [](int64_t steps) { return 1.0 / static_cast<double>(1 + steps); };
  LambdaLR scheduler(optimizer, {falling, [](int64_t) { return 0.5; }});
  scheduler.step();
  CHECK(scheduler.get_last_lr() == Rates{0.5, 5.0});
}

TEST_CASE("ConstantLR scales the first steps as in PyTorch") {
  auto optimizer = sgd(3.0);
  ConstantLR scheduler(optimizer, 0.5, 2);
  CHECK(rates(scheduler, 3) == Rates{1.5, 1.5, 3.0, 3.0});
}

TEST_CASE("ConstantLR with a factor of 0 restores the rate") {
  auto optimizer = sgd(3.0);
  ConstantLR scheduler(optimizer, 0.0, 2);
  CHECK(rates(scheduler, 3) == Rates{0.0, 0.0, 3.0, 3.0});
}

TEST_CASE("StepLR changes the rate in the step that is a multiple, without LibTorch's lag of one call") {
  auto ours = sgd(1.0), theirs = sgd(1.0);
  StepLR scheduler(ours, 2, 0.5);
  CHECK(rates(scheduler, 5) == Rates{1, 1, 0.5, 0.5, 0.25, 0.25});
  torch::optim::StepLR lagging(theirs, 2, 0.5);
  Rates list;
  for (int i = 0; i < 5; ++i) {
    lagging.step();
    list.push_back(theirs.param_groups()[0].options().get_lr());
  }
  CHECK(list == Rates{1, 1, 0.5, 0.5, 0.25});
}

TEST_CASE("a custom type can be a schedule with a factor or a rule") {
  struct Halving : Scheduler {
    explicit Halving(torch::optim::Optimizer& optimizer)
        : Scheduler(optimizer, [](int64_t steps) { return 1.0 / static_cast<double>(1 << steps); }) {}
  };
  struct Rising : Scheduler {
    explicit Rising(torch::optim::Optimizer& optimizer)
        : Scheduler(optimizer, Rule{.name = "Rising", .rate = [](const Position& at) { return at.now + at.base; }}) {}
  };
  auto one = sgd(1.0), another = sgd(1.0);
  Halving halving(one);
  Rising rising(another);
  CHECK(rates(halving, 2) == Rates{1.0, 0.5, 0.25});
  CHECK(rates(rising, 2) == Rates{2.0, 3.0, 4.0});
  CHECK(rising.name() == "Rising");
}

TEST_CASE("OneCycleLR keeps its last rate for one step and refuses the next step") {
  auto optimizer = sgd({1.0}, 0.9);
  OneCycleLR scheduler(optimizer, 0.5, 10);
  const auto list = rates(scheduler, 10);
  CHECK(list[9] == doctest::Approx(0.5 / 25 / 1e4).epsilon(1e-12));
  CHECK(list[10] == list[9]);
  CHECK_THROWS_WITH(
      scheduler.step(),
      "OneCycleLR: step 11 of a schedule of total_steps 10; make it as long as the training, or prepare() "
      "it: prepared, it rests at its end");
  CHECK(scheduler.steps() == 10);
  CHECK(scheduler.get_last_lr()[0] == list[9]);
}

TEST_CASE("schedules with a length have a last step, others have none") {
  auto optimizer = sgd({1.0}, 0.9);
  CHECK(*OneCycleLR(optimizer, 0.5, 10).last_step() == 9);
  CHECK(*get_linear_schedule_with_warmup(optimizer, 2, 10).last_step() == 10);
  CHECK(*get_cosine_schedule_with_warmup(optimizer, 2, 10).last_step() == 10);
  CHECK(!CosineAnnealingLR(optimizer, 10).last_step());
  CHECK(!StepLR(optimizer, 10).last_step());
}

TEST_CASE("a cyclic schedule sets the momentum of the optimizer's next step") {
  const auto weight_after = [](bool cycle_momentum) {
    const auto weight = torch::zeros({1}, torch::kDouble).requires_grad_();
    torch::optim::SGD optimizer({weight}, torch::optim::SGDOptions(1.0).momentum(0.5));
    CyclicLR scheduler(
        optimizer, 1.0, 1.0,
        {.step_size_up = 1, .cycle_momentum = cycle_momentum, .base_momentum = 0.25, .max_momentum = 0.75});
    for (int i = 0; i < 2; ++i) {
      weight.mutable_grad() = torch::ones({1}, torch::kDouble);
      optimizer.step();
      scheduler.step();
    }
    return weight.item<double>();
  };
  CHECK(weight_after(false) == -1.0 - 1.5);  // the second step adds momentum * 1
  CHECK(weight_after(true) == -1.0 - 1.25);
}
