// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/schedules/sequential.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "accelerate/base/error.hpp"
#include "accelerate/optim/schedules/combined.hpp"

namespace accelerate::optim {
namespace {

constexpr const char* kSequential = "SequentialLR";

void check_milestones(const std::vector<int64_t>& milestones, size_t schedules) {
  if (milestones.size() + 1 != schedules) {
    base::fail(ErrorKind::usage, {}, kSequential,
               "there are {} milestones and {} schedules; give one milestone fewer than schedules", milestones.size(),
               schedules);
  }
  int64_t before = 0;
  for (const int64_t milestone : milestones) {
    if (milestone <= before) {
      base::fail(ErrorKind::usage, {}, kSequential, "milestone {} follows {}; milestones must increase, from 1",
                 milestone, before);
    }
    before = milestone;
  }
}

struct Turns {
  Combined parts;
  std::vector<int64_t> milestones;

  /// Returns the active part.
  [[nodiscard]] size_t part_at(int64_t step) const {
    return static_cast<size_t>(std::upper_bound(milestones.begin(), milestones.end(), step) - milestones.begin());
  }
  [[nodiscard]] Position seen(size_t part, Position at) const {
    if (at.step == 0) at.now = parts.initial(at);
    if (part > 0) at.step -= milestones[part - 1];
    Position its = parts.seen_by(part, at);
    if (part > 0 && its.step == 0) its.now = its.base;
    return its;
  }
  [[nodiscard]] double rate(const Position& at) const {
    const size_t part = part_at(at.step);
    return parts.rule(part).rate(seen(part, at));
  }
  [[nodiscard]] std::optional<double> momentum(const Position& at) const {
    const size_t part = part_at(at.step);
    const auto& momentum = parts.rule(part).momentum;
    return momentum ? momentum(seen(part, at)) : std::nullopt;
  }
  [[nodiscard]] state::PythonSchedule python(const state::SchedulerState& whole) const {
    const auto steps_of = [&](size_t part) -> int64_t {
      const int64_t begin = part == 0 ? 0 : milestones[part - 1];
      const int64_t end = part == milestones.size() ? whole.steps + 1 : milestones[part];
      return whole.steps < begin ? -1 : std::min(whole.steps, end - 1) - begin;
    };
    state::PythonSchedule python = parts.python(whole, steps_of);
    python.members = {{"_milestones", milestones}};
    return python;
  }
  [[nodiscard]] std::optional<int64_t> last_step() const {
    const auto& of_last = parts.rule(parts.size() - 1).last_step;
    if (!of_last || milestones.empty()) return of_last;
    return milestones.back() + *of_last;
  }
};

Rule sequential_rule(torch::optim::Optimizer& optimizer, const std::vector<Scheduler>& schedules,
                     std::vector<int64_t> milestones) {
  if (!schedules.empty()) check_milestones(milestones, schedules.size());
  const auto turns = std::make_shared<Turns>(Combined(optimizer, schedules, kSequential), std::move(milestones));
  Rule rule{.name = turns->parts.name(),
            .rate = [turns](const Position& at) { return turns->rate(at); },
            .last_step = turns->last_step(),
            .begins_for_all = turns->parts.begins_for_all(),
            .others_begin_at = turns->parts.others_begin_at(),
            .python = [turns](const state::SchedulerState& whole) { return turns->python(whole); }};
  if (turns->parts.changes_momentum()) rule.momentum = [turns](const Position& at) { return turns->momentum(at); };
  return rule;
}

}  // namespace

SequentialLR::SequentialLR(torch::optim::Optimizer& optimizer, const std::vector<Scheduler>& schedules,
                           std::vector<int64_t> milestones)
    : Scheduler(optimizer, sequential_rule(optimizer, schedules, std::move(milestones))) {}

}  // namespace accelerate::optim
