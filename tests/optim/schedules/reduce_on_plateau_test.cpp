// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <cmath>

#include "accelerate/base/error.hpp"
#include "accelerate/optim/schedules/reduce_on_plateau.hpp"
#include "tests/optim/schedules/support.hpp"

using namespace accelerate::optim;
using Rates = std::vector<double>;

TEST_CASE("rates fall after more bad metrics than the patience, and NaN is a bad one") {
  auto optimizer = sgd({1.0, 4.0});
  ReduceLROnPlateau scheduler(optimizer, {.factor = 0.5, .patience = 1});
  for (const double metric : {3.0, 2.0, 2.0, std::nan("")}) scheduler.step(metric);
  CHECK(scheduler.get_last_lr() == Rates{0.5, 2.0});
  CHECK(scheduler.steps() == 4);
}

TEST_CASE("groups added later fall with the others, unless each was given its own floor") {
  auto optimizer = sgd(1.0), listed = sgd(1.0);
  ReduceLROnPlateau scheduler(optimizer, {.factor = 0.5, .patience = 0});
  ReduceLROnPlateau with_list(listed, {.factor = 0.5, .patience = 0, .min_lr = {0.1}});
  for (auto* one : {&optimizer, &listed}) {
    one->add_param_group(torch::optim::OptimizerParamGroup({torch::zeros({2})}));
  }
  scheduler.step(1);
  scheduler.step(1);
  CHECK(scheduler.get_last_lr() == Rates{0.5, 0.5});
  with_list.step(1);
  CHECK_THROWS_WITH(with_list.step(1),
                    "ReduceLROnPlateau: min_lr has 1 values, the optimizer 2 parameter groups; give one for each, or "
                    "one number for all");
}
