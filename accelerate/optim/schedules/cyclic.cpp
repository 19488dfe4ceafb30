// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/schedules/cyclic.hpp"

#include <torch/optim/optimizer.h>

#include <cmath>

#include "accelerate/optim/schedules/checks.hpp"
#include "accelerate/optim/schedules/momentum.hpp"

namespace accelerate::optim {
namespace {

constexpr const char* kCyclic = "CyclicLR";

std::function<double(double)> scale_of(const CyclicOptions& options) {
  if (options.scale_fn) return options.scale_fn;
  switch (options.mode) {
    case CyclicMode::triangular2:
      return [](double cycle) { return 1 / std::pow(2.0, cycle - 1); };
    case CyclicMode::exp_range:
      return [gamma = options.gamma](double steps) { return std::pow(gamma, steps); };
    default:
      return [](double) { return 1.0; };
  }
}

/// Height of the cycle at a step: 0 at its minimum, and this cycle's scale at its maximum.
std::function<double(int64_t)> height_of(const CyclicOptions& options) {
  const auto up = static_cast<double>(options.step_size_up);
  const double total = up + static_cast<double>(options.step_size_down.value_or(options.step_size_up));
  const bool by_steps =
      options.scale_fn ? options.scale_mode == CyclicScale::iterations : options.mode == CyclicMode::exp_range;
  return [top = up / total, total, by_steps, scale = scale_of(options)](int64_t steps) {
    const auto step = static_cast<double>(steps);
    const double cycle = std::floor(1 + step / total);
    const double x = 1.0 + step / total - cycle;
    return (x <= top ? x / top : (x - 1) / (top - 1)) * scale(by_steps ? step : cycle);
  };
}

Rule cyclic_rule(const torch::optim::Optimizer& optimizer, const PerGroup& base_lr, const PerGroup& max_lr,
                 const CyclicOptions& options) {
  check_at_least(kCyclic, "step_size_up", options.step_size_up, 1);
  check_at_least(kCyclic, "step_size_down", options.step_size_down.value_or(0), 0);
  check_gamma(kCyclic, options.gamma);
  const size_t groups = optimizer.param_groups().size();
  const auto height = height_of(options);
  const auto low = base_lr.of(groups, kCyclic, "base_lr");
  Rule rule{
      .name = kCyclic,
      .rate = [=, high = max_lr.of(groups, kCyclic, "max_lr")](
                  const Position& at) { return low[at.group] + (high[at.group] - low[at.group]) * height(at.step); },
      .begins_at = low};
  if (!options.cycle_momentum) return rule;
  check_has_momentum(optimizer, kCyclic, "cycle_momentum is true", "set cycle_momentum = false");
  rule.momentum = [=, least = options.base_momentum.of(groups, kCyclic, "base_momentum"),
                   most = options.max_momentum.of(groups, kCyclic, "max_momentum")](const Position& at) {
    return most[at.group] - (most[at.group] - least[at.group]) * height(at.step);
  };
  return rule;
}

}  // namespace

CyclicLR::CyclicLR(torch::optim::Optimizer& optimizer, const PerGroup& base_lr, const PerGroup& max_lr,
                   const CyclicOptions& options)
    : Scheduler(optimizer, cyclic_rule(optimizer, base_lr, max_lr, options)) {}

}  // namespace accelerate::optim
