// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/schedules/scheduler.hpp"

#include <torch/optim/optimizer.h>

#include <atomic>
#include <utility>

#include "accelerate/base/error.hpp"
#include "accelerate/optim/schedules/groups.hpp"
#include "accelerate/optim/schedules/lambda.hpp"
#include "accelerate/optim/schedules/momentum.hpp"

namespace accelerate::optim {
namespace {

int64_t next_made() {
  static std::atomic<int64_t> count = 0;
  return count++;
}

}  // namespace

Scheduler::Scheduler(torch::optim::Optimizer& optimizer, Factor factor)
    : Scheduler(optimizer, factor_rule("Scheduler", std::move(factor))) {}

Scheduler::Scheduler(torch::optim::Optimizer& optimizer, Rule rule)
    : optimizer_(&optimizer),
      rule_(std::move(rule)),
      found_(rates_of(optimizer)),
      base_(rule_.begins_at.empty() ? found_ : rule_.begins_at),
      made_(next_made()) {
  if (!rule_.rate) base::fail(ErrorKind::usage, {}, rule_.name, "the rate is an empty function, must give a number");
  if (rule_.momentum) check_has_momentum(optimizer, rule_.name, "it moves the momentum");
  set(0);
}

void Scheduler::step() { set(steps_ + 1); }

std::vector<double> Scheduler::get_last_lr() const { return rates_of(*optimizer_); }

void Scheduler::set(int64_t step) {
  auto& groups = optimizer_->param_groups();
  if (groups.size() != base_.size()) {
    base::fail(
        ErrorKind::usage, {}, rule_.name,
        "the optimizer has {} parameter groups, {} when the schedule was created; create the schedule after the last "
        "add_param_group",
        groups.size(), base_.size());
  }
  // Calls the rule for all groups before it sets a rate, because a rule may throw.
  std::vector<double> rates;
  std::vector<std::optional<double>> momenta;
  for (size_t i = 0; i < groups.size(); ++i) {
    const Position at{.step = step, .group = i, .base = base_[i], .now = groups[i].options().get_lr()};
    rates.push_back(rule_.rate(at));
    if (rule_.momentum) momenta.push_back(rule_.momentum(at));
  }
  set_rates(*optimizer_, rates);
  set_momenta(*optimizer_, momenta);
  steps_ = step;
}

state::SchedulerState Scheduler::state() const {
  state::SchedulerState state{.name = rule_.name,
                              .steps = steps_,
                              .base_lrs = base_,
                              .last_lrs = get_last_lr(),
                              .momenta = rule_.momentum ? momenta_of(*optimizer_) : std::vector<double>{}};
  if (rule_.python) state.python = rule_.python(state);
  state.python.of_groups.try_emplace("initial_lr", base_);
  return state;
}

void Scheduler::load_state(const state::SchedulerState& state) {
  check_scheduler_state(state, rule_.name, *optimizer_);
  set_rates(*optimizer_, state.last_lrs);
  if (rule_.momentum) set_momenta(*optimizer_, {state.momenta.begin(), state.momenta.end()});
  base_ = state.base_lrs;
  steps_ = state.steps;
}

}  // namespace accelerate::optim
