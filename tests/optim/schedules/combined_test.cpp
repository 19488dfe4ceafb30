// SPDX-License-Identifier: Apache-2.0
// Cases that parity.py cannot compare, because PyTorch does not support them.
#include "tests/testing.hpp"
//
#include "accelerate/optim/schedules/chained.hpp"
#include "accelerate/optim/schedules/constant.hpp"
#include "accelerate/optim/schedules/exponential.hpp"
#include "accelerate/optim/schedules/linear_with_warmup.hpp"
#include "accelerate/optim/schedules/one_cycle.hpp"
#include "accelerate/optim/schedules/sequential.hpp"
#include "accelerate/optim/schedules/step.hpp"
#include "tests/optim/schedules/support.hpp"

using namespace accelerate::optim;
using Rates = std::vector<double>;

TEST_CASE("a chain or sequence within a sequence begins at its milestone with the optimizer's initial rates") {
  auto optimizer = sgd(8.0);
  const ConstantLR held(optimizer, 0.5, 100);
  const StepLR halving(optimizer, 1, 0.5), quartering(optimizer, 2, 0.25);
  const ChainedScheduler both({halving, quartering});
  SequentialLR scheduler(optimizer, {held, both}, {2});
  CHECK(rates(scheduler, 5) == Rates{4, 4, 8, 4, 0.5, 0.25});

  auto another = sgd(8.0);
  const ConstantLR first(another, 0.5, 100);
  const SequentialLR inner(another, {ConstantLR(another, 0.25, 100), StepLR(another, 1, 0.5)}, {1});
  SequentialLR outer(another, {first, inner}, {2});
  CHECK(rates(outer, 5) == Rates{4, 4, 2, 8, 4, 2});
}

TEST_CASE("a sequence does not depend on the order in which its schedules were constructed") {
  auto optimizer = sgd(8.0);
  const StepLR later(optimizer, 1, 0.5);
  const ConstantLR sooner(optimizer, 0.25, 100);
  SequentialLR scheduler(optimizer, {sooner, later}, {2});
  CHECK(rates(scheduler, 4) == Rates{2, 2, 8, 4, 2});
}

TEST_CASE("a combination is named after its parts and ends with them") {
  auto optimizer = sgd({1.0}, 0.9);
  const SequentialLR sequence(optimizer, {ConstantLR(optimizer), get_linear_schedule_with_warmup(optimizer, 0, 10)},
                              {5});
  CHECK(sequence.name() == "SequentialLR(ConstantLR, linear_schedule_with_warmup)");
  CHECK(*sequence.last_step() == 15);
  CHECK(!SequentialLR(optimizer, {get_linear_schedule_with_warmup(optimizer, 0, 10), StepLR(optimizer, 5)}, {10})
             .last_step());
  CHECK(*ChainedScheduler({sequence, OneCycleLR(optimizer, 0.1, 10)}).last_step() == 15);
  CHECK(!ChainedScheduler({sequence, ExponentialLR(optimizer, 0.9)}).last_step());
}

TEST_CASE("a sequence changes the momentum only while a schedule that cycles it is active") {
  auto optimizer = sgd({1.0}, 0.5);
  const auto momentum = [&] {
    return static_cast<torch::optim::SGDOptions&>(optimizer.param_groups()[0].options()).momentum();
  };
  SequentialLR scheduler(optimizer, {OneCycleLR(optimizer, 0.1, 10), StepLR(optimizer, 5)}, {3});
  CHECK(momentum() == doctest::Approx(0.95).epsilon(1e-12));
  for (int i = 0; i < 2; ++i) scheduler.step();
  const double last = momentum();
  CHECK(last < 0.95);
  for (int i = 0; i < 3; ++i) scheduler.step();
  CHECK(momentum() == last);
}
