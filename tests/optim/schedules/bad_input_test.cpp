// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <cmath>

#include "accelerate/base/error.hpp"
#include "accelerate/optim/schedules/chained.hpp"
#include "accelerate/optim/schedules/constant.hpp"
#include "accelerate/optim/schedules/constant_with_warmup.hpp"
#include "accelerate/optim/schedules/cosine_annealing.hpp"
#include "accelerate/optim/schedules/cosine_warm_restarts.hpp"
#include "accelerate/optim/schedules/cosine_with_hard_restarts_with_warmup.hpp"
#include "accelerate/optim/schedules/cosine_with_warmup.hpp"
#include "accelerate/optim/schedules/cyclic.hpp"
#include "accelerate/optim/schedules/exponential.hpp"
#include "accelerate/optim/schedules/inverse_sqrt.hpp"
#include "accelerate/optim/schedules/lambda.hpp"
#include "accelerate/optim/schedules/linear.hpp"
#include "accelerate/optim/schedules/linear_with_warmup.hpp"
#include "accelerate/optim/schedules/multi_step.hpp"
#include "accelerate/optim/schedules/one_cycle.hpp"
#include "accelerate/optim/schedules/polynomial.hpp"
#include "accelerate/optim/schedules/polynomial_with_warmup.hpp"
#include "accelerate/optim/schedules/reduce_on_plateau.hpp"
#include "accelerate/optim/schedules/sequential.hpp"
#include "accelerate/optim/schedules/step.hpp"
#include "tests/optim/schedules/support.hpp"

using namespace accelerate::optim;

TEST_CASE("a schedule shorter than its warm-up is refused") {
  auto optimizer = sgd(1.0);
  CHECK_THROWS_WITH(
      get_linear_schedule_with_warmup(optimizer, 10, 5),
      "linear_schedule_with_warmup: num_training_steps is 5, num_warmup_steps 10: the schedule is shorter than its "
      "warm-up; lower num_warmup_steps or raise num_training_steps, both counted in optimizer steps of the whole job");
  CHECK_THROWS_WITH(
      get_cosine_schedule_with_warmup(optimizer, 10, 5),
      "cosine_schedule_with_warmup: num_training_steps is 5, num_warmup_steps 10: the schedule is shorter than its "
      "warm-up; lower num_warmup_steps or raise num_training_steps, both counted in optimizer steps of the whole job");
  CHECK_THROWS_WITH(get_cosine_with_hard_restarts_schedule_with_warmup(optimizer, 10, 5),
                    "cosine_with_hard_restarts_schedule_with_warmup: num_training_steps is 5, num_warmup_steps 10: the "
                    "schedule is shorter than its warm-up; lower num_warmup_steps or raise num_training_steps, both "
                    "counted in optimizer steps of the whole job");
  CHECK_THROWS_WITH(get_polynomial_decay_schedule_with_warmup(optimizer, 10, 5),
                    "polynomial_decay_schedule_with_warmup: num_training_steps is 5, num_warmup_steps 10: the schedule "
                    "is shorter than its warm-up; lower num_warmup_steps or raise num_training_steps, both counted in "
                    "optimizer steps of the whole job");
  CHECK_THROWS_WITH(get_polynomial_decay_schedule_with_warmup(optimizer, 10, 10),
                    "polynomial_decay_schedule_with_warmup: num_training_steps is 10, must be at least 11");
  CHECK_THROWS_WITH(get_linear_schedule_with_warmup(optimizer, -1, 5),
                    "linear_schedule_with_warmup: num_warmup_steps is -1, must be at least 0");
  CHECK_THROWS_WITH(get_linear_schedule_with_warmup(optimizer, 0, 0),
                    "linear_schedule_with_warmup: num_training_steps is 0, must be at least 1");
  CHECK_THROWS_WITH(get_constant_schedule_with_warmup(optimizer, -1),
                    "constant_schedule_with_warmup: num_warmup_steps is -1, must be at least 0");
  CHECK_THROWS_WITH(get_inverse_sqrt_schedule(optimizer, 10, 0),
                    "inverse_sqrt_schedule: timescale is 0, must be at least 1");
  CHECK(optimizer.param_groups()[0].options().get_lr() == 1.0);
}

TEST_CASE("step counts below one are refused") {
  auto optimizer = sgd({1.0}, 0.9);
  CHECK_THROWS_WITH(StepLR(optimizer, 0), "StepLR: step_size is 0, must be at least 1");
  CHECK_THROWS_WITH(ConstantLR(optimizer, 0.5, 0), "ConstantLR: total_iters is 0, must be at least 1");
  CHECK_THROWS_WITH(LinearLR(optimizer, 0.5, 1.0, 0), "LinearLR: total_iters is 0, must be at least 1");
  CHECK_THROWS_WITH(PolynomialLR(optimizer, 0), "PolynomialLR: total_iters is 0, must be at least 1");
  CHECK_THROWS_WITH(CosineAnnealingLR(optimizer, 0), "CosineAnnealingLR: T_max is 0, must be at least 1");
  CHECK_THROWS_WITH(CosineAnnealingWarmRestarts(optimizer, 0),
                    "CosineAnnealingWarmRestarts: T_0 is 0, must be at least 1");
  CHECK_THROWS_WITH(CosineAnnealingWarmRestarts(optimizer, 5, 0),
                    "CosineAnnealingWarmRestarts: T_mult is 0, must be at least 1");
  CHECK_THROWS_WITH(get_cosine_with_hard_restarts_schedule_with_warmup(optimizer, 1, 5, 0),
                    "cosine_with_hard_restarts_schedule_with_warmup: num_cycles is 0, must be at least 1");
  CHECK_THROWS_WITH(OneCycleLR(optimizer, 0.1, 0), "OneCycleLR: total_steps is 0, must be at least 1");
  CHECK_THROWS_WITH(CyclicLR(optimizer, 0.1, 0.2, {.step_size_up = 0}),
                    "CyclicLR: step_size_up is 0, must be at least 1");
  CHECK_THROWS_WITH(CyclicLR(optimizer, 0.1, 0.2, {.step_size_down = -1}),
                    "CyclicLR: step_size_down is -1, must be at least 0");
}

TEST_CASE("invalid factors are refused") {
  auto optimizer = sgd({1.0}, 0.9);
  CHECK_THROWS_WITH(StepLR(optimizer, 1, -0.1),
                    "StepLR: gamma is -0.1, must be at least 0: rates are multiplied by it");
  CHECK_THROWS_WITH(ExponentialLR(optimizer, std::nan("")),
                    "ExponentialLR: gamma is nan, must be at least 0: rates are multiplied by it");
  CHECK_THROWS_WITH(MultiStepLR(optimizer, {1}, -1),
                    "MultiStepLR: gamma is -1, must be at least 0: rates are multiplied by it");
  CHECK_THROWS_WITH(CyclicLR(optimizer, 0.1, 0.2, {.gamma = -1}),
                    "CyclicLR: gamma is -1, must be at least 0: rates are multiplied by it");
  CHECK_THROWS_WITH(ConstantLR(optimizer, 1.5), "ConstantLR: factor is 1.5, must be at least 0 and at most 1");
  CHECK_THROWS_WITH(LinearLR(optimizer, 0.0), "LinearLR: start_factor is 0, must be above 0 and at most 1");
  CHECK_THROWS_WITH(LinearLR(optimizer, 1.0, 1.5), "LinearLR: end_factor is 1.5, must be at least 0 and at most 1");
  CHECK_THROWS_WITH(
      get_polynomial_decay_schedule_with_warmup(optimizer, 1, 5, 2.0),
      "polynomial_decay_schedule_with_warmup: lr_end is 2, the optimizer's default rate 1; lr_end must be "
      "below it");
}

TEST_CASE("missing and negative milestones are refused") {
  auto optimizer = sgd(1.0);
  CHECK_THROWS_WITH(
      MultiStepLR(optimizer, {}),
      "MultiStepLR: there are 0 milestones, must be at least 1; a rate that stays is get_constant_schedule");
  CHECK_THROWS_WITH(MultiStepLR(optimizer, {3, -1}), "MultiStepLR: a milestone is -1, must be at least 0");
}

TEST_CASE("an invalid one-cycle schedule is refused") {
  auto optimizer = sgd({1.0, 2.0}, 0.9);
  CHECK_THROWS_WITH(OneCycleLR(optimizer, 0.1, 10, {.pct_start = 1.5}),
                    "OneCycleLR: pct_start is 1.5, must be at least 0 and at most 1");
  CHECK_THROWS_WITH(
      OneCycleLR(optimizer, 0.1, 10, {.pct_start = 0.1}),
      "OneCycleLR: pct_start is 0.1 of total_steps 10, a rise of 1 step, which begins at its end; make it "
      "longer, or 0");
  CHECK_THROWS_WITH(OneCycleLR(optimizer, 0.1, 10, {.div_factor = 0}), "OneCycleLR: div_factor is 0, must be above 0");
  CHECK_THROWS_WITH(OneCycleLR(optimizer, 0.1, 10, {.final_div_factor = -1}),
                    "OneCycleLR: final_div_factor is -1, must be above 0");
  CHECK_THROWS_WITH(OneCycleLR(optimizer, {0.1, 0.2, 0.3}, 10),
                    "OneCycleLR: max_lr has 3 values, the optimizer 2 parameter groups; give one for each, or one "
                    "number for all");
}

TEST_CASE("cycle_momentum is refused if the optimizer has no momentum") {
  torch::optim::Adagrad adagrad({torch::zeros({1})}, torch::optim::AdagradOptions(1.0));
  CHECK_THROWS_WITH(OneCycleLR(adagrad, 0.1, 10),
                    "OneCycleLR: cycle_momentum is true, and the optimizer has neither momentum nor betas; set "
                    "cycle_momentum = false");
  CHECK_THROWS_WITH(CyclicLR(adagrad, 0.1, 0.2),
                    "CyclicLR: cycle_momentum is true, and the optimizer has neither momentum nor betas; set "
                    "cycle_momentum = false");
  CHECK_NOTHROW(OneCycleLR(adagrad, 0.1, 10, {.cycle_momentum = false}));
  const Rule mine{.name = "mine",
                  .rate = [](const Position& at) { return at.now; },
                  .momentum = [](const Position&) { return 0.9; }};
  CHECK_THROWS_WITH(Scheduler(adagrad, mine),
                    "mine: it moves the momentum, and the optimizer has neither momentum nor betas; use another "
                    "optimizer, or a schedule without momentum");
}

TEST_CASE("schedules of different optimizers cannot be combined") {
  auto one = sgd(1.0), another = sgd(1.0);
  CHECK_THROWS_WITH(ChainedScheduler({ConstantLR(one), StepLR(another, 5)}),
                    "ChainedScheduler: schedule 2 of 2, StepLR, belongs to another optimizer; create all schedules for "
                    "the same optimizer");
  CHECK_THROWS_WITH(SequentialLR(another, {ConstantLR(one), StepLR(another, 5)}, {3}),
                    "SequentialLR: schedule 1 of 2, ConstantLR, belongs to another optimizer; create all schedules for "
                    "the same optimizer");
  CHECK_THROWS_WITH(ChainedScheduler(std::vector<Scheduler>{}),
                    "ChainedScheduler: there are 0 schedules, must be at least 1");
  CHECK_THROWS_WITH(SequentialLR(one, {}, {}), "SequentialLR: there are 0 schedules, must be at least 1");
}

TEST_CASE("milestones that do not match the parts of a sequence are refused") {
  auto optimizer = sgd(1.0);
  const std::vector<Scheduler> three{ConstantLR(optimizer), ExponentialLR(optimizer, 0.9), StepLR(optimizer, 5)};
  CHECK_THROWS_WITH(SequentialLR(optimizer, three, {5}),
                    "SequentialLR: there are 1 milestones and 3 schedules; give one milestone fewer than schedules");
  CHECK_THROWS_WITH(SequentialLR(optimizer, three, {5, 5}),
                    "SequentialLR: milestone 5 follows 5; milestones must increase, from 1");
  CHECK_THROWS_WITH(SequentialLR(optimizer, three, {0, 5}),
                    "SequentialLR: milestone 0 follows 0; milestones must increase, from 1");
}

TEST_CASE("empty functions, too few functions, and a rule without rate are refused") {
  auto optimizer = sgd({1.0, 2.0});
  CHECK_THROWS_WITH(LambdaLR(optimizer, nullptr), "LambdaLR: the factor is an empty function, must give a number");
  CHECK_THROWS_WITH(LambdaLR(optimizer, std::vector<Scheduler::Factor>(2)),
                    "LambdaLR: the factor is an empty function, must give a number");
  CHECK_THROWS_WITH(LambdaLR(optimizer, std::vector<Scheduler::Factor>(3, [](int64_t) { return 1.0; })),
                    "LambdaLR: there are 3 functions, the optimizer has 2 parameter groups; give one for each, or one "
                    "for all");
  CHECK_THROWS_WITH(Scheduler(optimizer, Rule{.name = "Mine", .rate = nullptr}),
                    "Mine: the rate is an empty function, must give a number");
}

TEST_CASE("a schedule refuses its next step after a parameter group was added") {
  auto optimizer = sgd(1.0);
  LambdaLR scheduler(optimizer, [](int64_t) { return 1.0; });
  optimizer.add_param_group(torch::optim::OptimizerParamGroup({torch::zeros({2})}));
  CHECK_THROWS_WITH(scheduler.step(),
                    "LambdaLR: the optimizer has 2 parameter groups, 1 when the schedule was created; create the "
                    "schedule after the last add_param_group");
}

TEST_CASE("a rule that throws does not change rates and steps") {
  auto optimizer = sgd({1.0, 2.0});
  const auto good = [](int64_t steps) { return 1.0 / static_cast<double>(1 + steps); };
  const auto bad = [](int64_t steps) { return steps == 2 ? throw std::runtime_error("no") : 1.0; };
  LambdaLR scheduler(optimizer, {good, bad});
  scheduler.step();
  CHECK_THROWS_WITH(scheduler.step(), "no");
  CHECK(scheduler.steps() == 1);
  CHECK(scheduler.get_last_lr() == std::vector<double>{0.5, 2.0});
}

TEST_CASE("invalid options of a plateau schedule are refused") {
  auto optimizer = sgd({1.0, 2.0});
  CHECK_THROWS_WITH(ReduceLROnPlateau(optimizer, {.factor = 1.0}),
                    "ReduceLROnPlateau: factor is 1, must be at least 0 and below 1");
  CHECK_THROWS_WITH(ReduceLROnPlateau(optimizer, {.patience = -1}),
                    "ReduceLROnPlateau: patience is -1, must be at least 0");
  CHECK_THROWS_WITH(ReduceLROnPlateau(optimizer, {.cooldown = -1}),
                    "ReduceLROnPlateau: cooldown is -1, must be at least 0");
  CHECK_THROWS_WITH(ReduceLROnPlateau(optimizer, {.min_lr = {0.1, 0.1, 0.1}}),
                    "ReduceLROnPlateau: min_lr has 3 values, the optimizer 2 parameter groups; give one for each, or "
                    "one number for all");
}
