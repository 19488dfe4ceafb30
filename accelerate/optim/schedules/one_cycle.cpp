// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/schedules/one_cycle.hpp"

#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/optim/schedules/checks.hpp"
#include "accelerate/optim/schedules/momentum.hpp"

namespace accelerate::optim {
namespace {

constexpr const char* kOneCycle = "OneCycleLR";

enum class Height { first, top, last };

struct Phase {
  double end;  ///< last step of the phase
  Height from;
  Height to;
};

std::vector<Phase> phases_of(int64_t total_steps, const OneCycleOptions& options) {
  const auto total = static_cast<double>(total_steps);
  const double top = options.pct_start * total - 1;
  if (!options.three_phase) return {{top, Height::first, Height::top}, {total - 1, Height::top, Height::last}};
  return {{top, Height::first, Height::top},
          {2 * options.pct_start * total - 2, Height::top, Height::first},
          {total - 1, Height::first, Height::last}};
}

/// The two rates around a step, and the position between them.
struct StateAccessor {
  Height from;
  Height to;
  double done;
};

StateAccessor way_at(const std::vector<Phase>& phases, int64_t steps) {
  const auto step = static_cast<double>(steps);
  double start = 0;
  for (const Phase& phase : phases) {
    if (step <= phase.end || &phase == &phases.back()) {
      return {phase.from, phase.to, (step - start) / (phase.end - start)};
    }
    start = phase.end;
  }
  return {};
}

double between(double from, double to, double done, AnnealStrategy strategy) {
  if (strategy == AnnealStrategy::linear) return (to - from) * done + from;
  return to + (from - to) / 2.0 * (std::cos(std::numbers::pi * done) + 1);
}

void check_above_0(const char* argument, double value) {
  if (value > 0) return;
  base::fail(ErrorKind::usage, {}, kOneCycle, "{} is {}, must be above 0", argument, value);
}

void check_one_cycle_options(int64_t total_steps, const OneCycleOptions& options) {
  check_at_least(kOneCycle, "total_steps", total_steps, 1);
  check_up_to_1(kOneCycle, "pct_start", options.pct_start);
  check_above_0("div_factor", options.div_factor);
  check_above_0("final_div_factor", options.final_div_factor);
  if (options.pct_start * static_cast<double>(total_steps) == 1) {
    base::fail(ErrorKind::usage, {}, kOneCycle,
               "pct_start is {} of total_steps {}, a rise of 1 step, which begins at its end; make it longer, or 0",
               options.pct_start, total_steps);
  }
}

struct Heights {
  double first, top, last;

  [[nodiscard]] double operator[](Height height) const {
    return height == Height::first ? first : height == Height::top ? top : last;
  }
};

// Names of PyTorch's OneCycleLR in the optimizer's groups.
constexpr const char* rate_name(Height height) {
  return height == Height::first ? "initial_lr" : height == Height::top ? "max_lr" : "min_lr";
}
constexpr const char* momentum_name(Height height) { return height == Height::top ? "base_momentum" : "max_momentum"; }

state::PythonSchedule for_python(const std::vector<Heights>& rates, const std::vector<Heights>& momenta,
                                 bool moves_beta1, int64_t total_steps, const OneCycleOptions& options) {
  state::PythonSchedule python{.members = {{"total_steps", total_steps}, {"cycle_momentum", options.cycle_momentum}},
                               .parts = {}};
  const bool linear = options.anneal_strategy == AnnealStrategy::linear;
  python.members.emplace_back("_anneal_func_type", std::string(linear ? "linear" : "cos"));
  if (options.cycle_momentum) python.members.emplace_back("use_beta1", moves_beta1);
  for (const Phase& phase : phases_of(total_steps, options)) {
    python.phases.push_back({{"end_step", phase.end},
                             {"start_lr", std::string(rate_name(phase.from))},
                             {"end_lr", std::string(rate_name(phase.to))},
                             {"start_momentum", std::string(momentum_name(phase.from))},
                             {"end_momentum", std::string(momentum_name(phase.to))}});
  }
  for (const Height height : {Height::first, Height::top, Height::last}) {
    for (const Heights& its : rates) python.of_groups[rate_name(height)].push_back(its[height]);
  }
  for (const Height height : {Height::first, Height::top}) {
    for (const Heights& its : momenta) python.of_groups[momentum_name(height)].push_back(its[height]);
  }
  return python;
}

/// Values of every group along the cycle.
auto along(std::vector<Heights> heights, int64_t total_steps, const OneCycleOptions& options) {
  return [=, heights = std::move(heights), phases = phases_of(total_steps, options),
          strategy = options.anneal_strategy](const Position& at) {
    if (at.step > total_steps) {
      base::fail(ErrorKind::usage, {}, kOneCycle,
                 "step {} of a schedule of total_steps {}; make it as long as the training, or prepare() it: prepared, "
                 "it rests at its end",
                 at.step, total_steps);
    }
    const StateAccessor way = way_at(phases, std::min(at.step, total_steps - 1));
    const Heights& its = heights[at.group];
    return between(its[way.from], its[way.to], way.done, strategy);
  };
}

Rule one_cycle_rule(const torch::optim::Optimizer& optimizer, const PerGroup& max_lr, int64_t total_steps,
                    const OneCycleOptions& options) {
  check_one_cycle_options(total_steps, options);
  const size_t groups = optimizer.param_groups().size();
  std::vector<double> first;
  std::vector<Heights> rates, momenta;
  for (const double top : max_lr.of(groups, kOneCycle, "max_lr")) {
    first.push_back(top / options.div_factor);
    rates.push_back({first.back(), top, first.back() / options.final_div_factor});
  }
  Rule rule{.name = kOneCycle,
            .rate = along(rates, total_steps, options),
            .last_step = total_steps - 1,
            .begins_at = std::move(first),
            .begins_for_all = true};
  if (options.cycle_momentum) {
    check_has_momentum(optimizer, kOneCycle, "cycle_momentum is true", "set cycle_momentum = false");
    const auto least = options.base_momentum.of(groups, kOneCycle, "base_momentum");
    const auto most = options.max_momentum.of(groups, kOneCycle, "max_momentum");
    for (size_t i = 0; i < groups; ++i) momenta.push_back({most[i], least[i], most[i]});
    rule.momentum = along(momenta, total_steps, options);
  }
  rule.python = [python = for_python(rates, momenta, momentum_is_beta1(optimizer), total_steps, options)](
                    const state::SchedulerState&) { return python; };
  return rule;
}

}  // namespace

OneCycleLR::OneCycleLR(torch::optim::Optimizer& optimizer, const PerGroup& max_lr, int64_t total_steps,
                       const OneCycleOptions& options)
    : Scheduler(optimizer, one_cycle_rule(optimizer, max_lr, total_steps, options)) {}

}  // namespace accelerate::optim
