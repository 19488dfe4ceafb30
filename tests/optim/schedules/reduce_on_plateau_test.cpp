// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <cmath>

#include "accelerate/base/error.hpp"
#include "accelerate/optim/schedules/reduce_on_plateau.hpp"
#include "tests/optim/schedules/support.hpp"

using namespace accelerate::optim;
using Rates = std::vector<double>;

TEST_CASE("rates are reduced after more bad metrics than the patience, and NaN is a bad metric") {
  auto optimizer = sgd({1.0, 4.0});
  ReduceLROnPlateau scheduler(optimizer, {.factor = 0.5, .patience = 1});
  for (const double metric : {3.0, 2.0, 2.0, std::nan("")}) scheduler.step(metric);
  CHECK(scheduler.get_last_lr() == Rates{0.5, 2.0});
  CHECK(scheduler.steps() == 4);
}

TEST_CASE("groups that are added later are reduced too, unless each group has its own minimum") {
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

namespace {

/// The rate after these metrics: 0.1, or 0.01 if the last one was not better.
double rate_after(const std::vector<double>& metrics, PlateauMode mode, ThresholdMode threshold_mode,
                  double threshold = 0.1) {
  auto optimizer = sgd(0.1);
  ReduceLROnPlateau scheduler(optimizer,
                              {.mode = mode, .patience = 0, .threshold = threshold, .threshold_mode = threshold_mode});
  for (const double metric : metrics) scheduler.step(metric);
  return scheduler.get_last_lr()[0];
}

}  // namespace

TEST_CASE("the relative threshold applies to the absolute value of negative metrics") {
  const double kept = 0.1, fell = 0.01;
  constexpr auto low = PlateauMode::min, high = PlateauMode::max;
  constexpr auto part = ThresholdMode::rel, number = ThresholdMode::abs;
  // lower is better
  CHECK(rate_after({-1, -0.95}, low, part) == doctest::Approx(fell));
  CHECK(rate_after({-1, -1}, low, part) == doctest::Approx(fell));
  CHECK(rate_after({-1, -1}, low, part, 1e-4) == doctest::Approx(fell));
  CHECK(rate_after({-1, -1.05}, low, part) == doctest::Approx(fell));
  CHECK(rate_after({-1, -1.2}, low, part) == kept);
  CHECK(rate_after({1, 0.95}, low, part) == doctest::Approx(fell));
  CHECK(rate_after({1, 0.85}, low, part) == kept);
  CHECK(rate_after({1, -1}, low, part) == kept);
  CHECK(rate_after({-1, -0.95}, low, number) == doctest::Approx(fell));
  CHECK(rate_after({-1, -1.05}, low, number) == doctest::Approx(fell));
  CHECK(rate_after({-1, -1.2}, low, number) == kept);
  // higher is better
  CHECK(rate_after({-1, -1.05}, high, part) == doctest::Approx(fell));
  CHECK(rate_after({-1, -0.95}, high, part) == doctest::Approx(fell));
  CHECK(rate_after({-1, -0.85}, high, part) == kept);
  CHECK(rate_after({1, 1.05}, high, part) == doctest::Approx(fell));
  CHECK(rate_after({1, 1.2}, high, part) == kept);
  CHECK(rate_after({-1, -0.95}, high, number) == doctest::Approx(fell));
  CHECK(rate_after({-1, -0.85}, high, number) == kept);
  // a best of zero, and no best yet
  CHECK(rate_after({0, 0}, low, part) == doctest::Approx(fell));
  CHECK(rate_after({0, -1e-9}, low, part) == kept);
  CHECK(rate_after({-1e300}, high, part, 2.0) == kept);
  CHECK(rate_after({1e300}, low, part, 2.0) == kept);
  CHECK(rate_after({5}, low, part, 0.0) == kept);
}
