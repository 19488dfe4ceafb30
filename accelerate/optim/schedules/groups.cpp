// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/schedules/groups.hpp"

#include <torch/optim/optimizer.h>

#include "accelerate/base/error.hpp"

namespace accelerate::optim {

std::vector<double> rates_of(const torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

void set_rates(torch::optim::Optimizer& optimizer, const std::vector<double>& rates) {
  for (size_t i = 0; i < rates.size(); ++i) optimizer.param_groups()[i].options().set_lr(rates[i]);
}

void check_scheduler_state(const state::SchedulerState& state, std::string_view name,
                           const torch::optim::Optimizer& optimizer) {
  const size_t groups = optimizer.param_groups().size();
  if (state.name != name) {
    base::fail(ErrorKind::usage, {}, "load_state",
               "the saved state is of the schedule {}, this one is {}; make the schedule that was saved", state.name,
               name);
  }
  if (state.last_lrs.size() != groups) {
    base::fail(ErrorKind::usage, {}, "load_state",
               "the saved state of {} has {} parameter groups, the optimizer {}; give it the groups it had", name,
               state.last_lrs.size(), groups);
  }
  if (state.base_lrs.size() != groups || state.steps < 0 ||
      (!state.momenta.empty() && state.momenta.size() != groups)) {
    base::fail(
        ErrorKind::data, {}, "load_state",
        "the saved state of {} has {} steps, {} base_lrs, {} last_lrs and {} momenta; it was not written by this "
        "library",
        name, state.steps, state.base_lrs.size(), state.last_lrs.size(), state.momenta.size());
  }
}

}  // namespace accelerate::optim
