// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/schedules/lambda.hpp"

#include <torch/optim/optimizer.h>

#include <string_view>
#include <utility>

#include "accelerate/base/error.hpp"

namespace accelerate::optim {
namespace {

void check_factor(std::string_view name, const Scheduler::Factor& factor) {
  if (!factor) base::fail(ErrorKind::usage, {}, name, "the factor is an empty function, must give a number");
}

Rule factors_rule(std::vector<Scheduler::Factor> factors, size_t groups) {
  if (factors.size() != groups) {
    base::fail(ErrorKind::usage, {}, "LambdaLR",
               "there are {} functions, the optimizer has {} parameter groups; give one for each, or one for all",
               factors.size(), groups);
  }
  for (const auto& factor : factors) check_factor("LambdaLR", factor);
  return {.name = "LambdaLR",
          .rate = [factors = std::move(factors)](const Position& at) { return at.base * factors[at.group](at.step); }};
}

}  // namespace

LambdaLR::LambdaLR(torch::optim::Optimizer& optimizer, Factor lr_lambda)
    : Scheduler(optimizer, factor_rule("LambdaLR", std::move(lr_lambda))) {}

LambdaLR::LambdaLR(torch::optim::Optimizer& optimizer, std::vector<Factor> lr_lambdas)
    : Scheduler(optimizer, factors_rule(std::move(lr_lambdas), optimizer.param_groups().size())) {}

Rule factor_rule(std::string name, Scheduler::Factor factor, std::optional<int64_t> last_step) {
  check_factor(name, factor);
  return {.name = std::move(name),
          .rate = [factor = std::move(factor)](const Position& at) { return at.base * factor(at.step); },
          .last_step = last_step};
}

}  // namespace accelerate::optim
