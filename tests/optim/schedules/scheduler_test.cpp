// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include "accelerate/base/error.hpp"
#include "accelerate/optim/schedules/constant.hpp"
#include "accelerate/optim/schedules/lambda.hpp"

using accelerate::optim::ConstantLR;
using accelerate::optim::LambdaLR;

namespace {
torch::optim::SGD sgd(double lr) {
  return torch::optim::SGD(std::vector<at::Tensor>{torch::zeros({1})}, torch::optim::SGDOptions(lr));
}
std::vector<double> rates(accelerate::optim::Scheduler& scheduler, int steps) {
  std::vector<double> list{scheduler.get_last_lr()[0]};
  for (int i = 0; i < steps; ++i) {
    scheduler.step();
    list.push_back(scheduler.get_last_lr()[0]);
  }
  return list;
}
}  // namespace

TEST_CASE("LambdaLR multiplies the first rate by the factor of the steps made") {
  auto optimizer = sgd(2.0);
  LambdaLR scheduler(optimizer, [](int64_t steps) { return 1.0 - static_cast<double>(steps) / 4.0; });
  CHECK(rates(scheduler, 4) == std::vector<double>{2.0, 1.5, 1.0, 0.5, 0.0});
  CHECK(scheduler.steps() == 4);
}

TEST_CASE("ConstantLR holds back the first steps, as PyTorch's does") {
  auto optimizer = sgd(3.0);
  ConstantLR scheduler(optimizer, 0.5, 2);
  CHECK(rates(scheduler, 3) == std::vector<double>{1.5, 1.5, 3.0, 3.0});
}

TEST_CASE("a schedule without factor and one older than a parameter group are refused") {
  auto optimizer = sgd(1.0);
  CHECK_THROWS_WITH(LambdaLR(optimizer, nullptr), "scheduler: the factor is an empty function, must give a number");
  LambdaLR scheduler(optimizer, [](int64_t) { return 1.0; });
  optimizer.add_param_group(torch::optim::OptimizerParamGroup({torch::zeros({2})}));
  CHECK_THROWS_WITH(scheduler.step(),
                    "scheduler: the optimizer has 2 parameter groups, 1 when the schedule was made; make the schedule "
                    "after the last add_param_group");
}
