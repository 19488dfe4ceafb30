// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/schedules/combined.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "accelerate/base/error.hpp"
#include "accelerate/optim/schedules/groups.hpp"

namespace accelerate::optim {

Combined::Combined(torch::optim::Optimizer& optimizer, const std::vector<Scheduler>& schedules, std::string_view name)
    : made_(schedules.size()), name_(name) {
  if (schedules.empty()) base::fail(ErrorKind::usage, {}, name, "there are 0 schedules, must be at least 1");
  name_ += "(";
  for (size_t i = 0; i < schedules.size(); ++i) {
    if (schedules[i].optimizer_ != &optimizer) {
      base::fail(ErrorKind::usage, {}, name,
                 "schedule {} of {}, {}, belongs to another optimizer; create all schedules for the same optimizer",
                 i + 1, schedules.size(), schedules[i].name());
    }
    parts_.push_back({.rule = schedules[i].rule_, .base = schedules[i].rule_.begins_at});
    name_ += (i == 0 ? "" : ", ") + schedules[i].name();
  }
  name_ += ")";
  std::iota(made_.begin(), made_.end(), 0);
  std::stable_sort(made_.begin(), made_.end(),
                   [&](size_t a, size_t b) { return schedules[a].made_ < schedules[b].made_; });
  for (const size_t i : made_) {
    Part& part = parts_[i];
    if (part.base.empty()) part.base = initial_;
    if (!part.rule.begins_for_all && i != made_.front()) continue;
    initial_ = part.rule.others_begin_at.empty() ? part.base : part.rule.others_begin_at;
  }
  set_rates(optimizer, schedules[made_.front()].found_);
}

bool Combined::begins_for_all() const {
  return std::any_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.rule.begins_for_all; });
}

bool Combined::changes_momentum() const {
  return std::any_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.rule.momentum != nullptr; });
}

Position Combined::seen_by(size_t part, Position at) const {
  const auto& base = parts_[part].base;
  if (!base.empty()) at.base = base[at.group];
  return at;
}

state::PythonSchedule Combined::python(const state::SchedulerState& whole,
                                       const std::function<int64_t(size_t part)>& steps) const {
  state::PythonSchedule python;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const auto& [rule, base] = parts_[i];
    state::SchedulerState part{.name = rule.name,
                               .steps = steps(i),
                               .base_lrs = base.empty() ? whole.base_lrs : base,
                               .last_lrs = whole.last_lrs};
    if (rule.python) part.python = rule.python(part);
    python.parts.push_back(std::move(part));
  }
  for (const size_t i : made_) {  // in creation order: later schedules overwrite the entries
    for (const auto& [name, numbers] : python.parts[i].python.of_groups) python.of_groups[name] = numbers;
  }
  if (!initial_.empty()) python.of_groups["initial_lr"] = initial_;
  return python;
}

double Combined::initial(const Position& at) const { return initial_.empty() ? at.base : initial_[at.group]; }

}  // namespace accelerate::optim
