// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/schedules/scheduler.hpp"

#include <torch/optim/optimizer.h>

#include "accelerate/base/error.hpp"

namespace accelerate::optim {

Scheduler::Scheduler(torch::optim::Optimizer& optimizer, Factor factor)
    : optimizer_(&optimizer), factor_(std::move(factor)) {
  if (!factor_) base::fail(ErrorKind::usage, {}, "scheduler", "the factor is an empty function, must give a number");
  for (const auto& group : optimizer.param_groups()) base_.push_back(group.options().get_lr());
  apply();
}

void Scheduler::step() {
  ++steps_;
  apply();
}

std::vector<double> Scheduler::get_last_lr() const {
  std::vector<double> rates;
  for (const auto& group : optimizer_->param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

void Scheduler::apply() const {
  auto& groups = optimizer_->param_groups();
  if (groups.size() != base_.size()) {
    base::fail(ErrorKind::usage, {}, "scheduler",
               "the optimizer has {} parameter groups, {} when the schedule was made; make the schedule after the last "
               "add_param_group",
               groups.size(), base_.size());
  }
  const double factor = factor_(steps_);
  for (size_t i = 0; i < base_.size(); ++i) groups[i].options().set_lr(base_[i] * factor);
}

}  // namespace accelerate::optim
