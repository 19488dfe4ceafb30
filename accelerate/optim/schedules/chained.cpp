// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/schedules/chained.hpp"

#include <algorithm>
#include <memory>
#include <optional>

#include "accelerate/base/error.hpp"
#include "accelerate/optim/schedules/combined.hpp"

namespace accelerate::optim {
namespace {

constexpr const char* kChained = "ChainedScheduler";

torch::optim::Optimizer& optimizer_of(const std::vector<Scheduler>& schedules) {
  if (schedules.empty()) base::fail(ErrorKind::usage, {}, kChained, "there are 0 schedules, must be at least 1");
  return schedules.front().optimizer();
}

double rate_of(const Combined& parts, Position at) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t part = at.step == 0 ? parts.made()[i] : i;  // the constructors set the first rates, in creation order
    at.now = parts.rule(part).rate(parts.seen_by(part, at));
  }
  return at.now;
}

std::optional<double> momentum_of(const Combined& parts, const Position& at) {
  std::optional<double> last;
  for (size_t part = 0; part < parts.size(); ++part) {
    const auto& momentum = parts.rule(part).momentum;
    const auto value = momentum ? momentum(parts.seen_by(part, at)) : std::nullopt;
    if (value) last = value;
  }
  return last;
}

/// Returns the latest last step of the parts, or nothing if a part has none.
std::optional<int64_t> last_step_of(const Combined& parts) {
  int64_t last = 0;
  for (size_t part = 0; part < parts.size(); ++part) {
    if (!parts.rule(part).last_step) return std::nullopt;
    last = std::max(last, *parts.rule(part).last_step);
  }
  return last;
}

state::PythonSchedule python_of(const Combined& parts, const state::SchedulerState& whole) {
  state::PythonSchedule python = parts.python(whole, [&](size_t) { return whole.steps; });
  python.counts = false;
  return python;
}

Rule chained_rule(torch::optim::Optimizer& optimizer, const std::vector<Scheduler>& schedules) {
  const auto parts = std::make_shared<const Combined>(optimizer, schedules, kChained);
  Rule rule{.name = parts->name(),
            .rate = [parts](const Position& at) { return rate_of(*parts, at); },
            .last_step = last_step_of(*parts),
            .begins_for_all = parts->begins_for_all(),
            .others_begin_at = parts->others_begin_at(),
            .python = [parts](const state::SchedulerState& whole) { return python_of(*parts, whole); }};
  if (parts->changes_momentum()) rule.momentum = [parts](const Position& at) { return momentum_of(*parts, at); };
  return rule;
}

}  // namespace

ChainedScheduler::ChainedScheduler(const std::vector<Scheduler>& schedules)
    : ChainedScheduler(optimizer_of(schedules), schedules) {}

ChainedScheduler::ChainedScheduler(torch::optim::Optimizer& optimizer, const std::vector<Scheduler>& schedules)
    : Scheduler(optimizer, chained_rule(optimizer, schedules)) {}

}  // namespace accelerate::optim
