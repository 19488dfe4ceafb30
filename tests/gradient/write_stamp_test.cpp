// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <ATen/core/grad_mode.h>

#include "accelerate/gradient/write_stamp.hpp"

using accelerate::gradient::WriteWatch;

TEST_CASE("an armed watch detects writes with and without a new version until it is armed again") {
  const at::NoGradGuard no_grad;
  const at::Tensor parameter = torch::zeros({100}, torch::requires_grad());
  WriteWatch watch;
  parameter.add_(1);
  CHECK_FALSE(watch.has_changed(parameter));  // not armed
  watch.arm(parameter);
  CHECK_FALSE(watch.has_changed(parameter));
  parameter.narrow(0, 50, 1).add_(1);  // behind the first bytes, with a new version
  CHECK(watch.has_changed(parameter));
  watch.arm(parameter);
  parameter.data().add_(1);  // as LibTorch's SGD does
  CHECK(watch.has_changed(parameter));
  watch.disarm();
  CHECK_FALSE(watch.has_changed(parameter));
}

TEST_CASE("writes of a forward do not count, earlier ones do") {
  const at::NoGradGuard no_grad;
  const at::Tensor parameter = torch::zeros({4}, torch::requires_grad());
  WriteWatch watch;
  watch.arm(parameter);
  watch.begin_forward(parameter);
  parameter.add_(1);
  watch.end_forward(parameter);
  CHECK_FALSE(watch.has_changed(parameter));
  parameter.add_(1);
  watch.begin_forward(parameter);
  watch.end_forward(parameter);
  CHECK(watch.has_changed(parameter));
}

TEST_CASE("a change of a parameter's dtype is not a write") {
  const at::NoGradGuard no_grad;
  at::Tensor parameter = torch::ones({4}, torch::requires_grad());
  WriteWatch watch;
  watch.arm(parameter);
  parameter.set_data(parameter.to(torch::kDouble));
  CHECK_FALSE(watch.has_changed(parameter));
}
