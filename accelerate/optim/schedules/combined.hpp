// SPDX-License-Identifier: Apache-2.0
// Private: rules made of the rules of several schedules of one optimizer.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/optim/schedules/scheduler.hpp"

namespace accelerate::optim {

/// The parts of a SequentialLR or ChainedScheduler.
///
/// Each was made by itself and has moved the rates, so that those made later took moved rates for the optimizer's own.
/// Here all get the rates that the first found; only parts that begin at rates of their own keep them. In PyTorch the
/// optimizer remembers these rates (initial_lr), LibTorch's do not.
class Combined {
 public:
  /// Restores the optimizer's rates from before the first component was created.
  /// \throws Error (usage) without components, and for components of another optimizer.
  Combined(torch::optim::Optimizer& optimizer, const std::vector<Scheduler>& schedules, std::string_view name);

  [[nodiscard]] size_t size() const { return parts_.size(); }
  [[nodiscard]] const Rule& rule(size_t part) const { return parts_[part].rule; }
  /// Parts in the order in which they were made.
  [[nodiscard]] const std::vector<size_t>& made() const { return made_; }
  /// "SequentialLR(LinearLR, StepLR)"
  [[nodiscard]] const std::string& name() const { return name_; }

  /// Rule::others_begin_at and begins_for_all of the whole.
  [[nodiscard]] const std::vector<double>& others_begin_at() const { return initial_; }
  [[nodiscard]] bool begins_for_all() const;
  /// Whether a part moves the momentum.
  [[nodiscard]] bool moves_momentum() const;

  /// The position, as that part sees it: with its own base.
  [[nodiscard]] Position seen_by(size_t part, Position at) const;
  /// As PyTorch's has it; steps   of a part, -1 before its turn
  [[nodiscard]] state::PythonSchedule python(const state::SchedulerState& whole,
                                             const std::function<int64_t(size_t part)>& steps) const;
  /// What the optimizer's rate is before the first step: where the last part begins that begins for all.
  [[nodiscard]] double initial(const Position& at) const;

 private:
  struct Part {
    Rule rule;
    std::vector<double> base;  // empty: that of the whole
  };

  std::vector<Part> parts_;
  std::vector<size_t> made_;
  std::vector<double> initial_;  // empty: the base of the whole
  std::string name_;
};

}  // namespace accelerate::optim
