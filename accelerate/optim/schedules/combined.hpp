// SPDX-License-Identifier: Apache-2.0
// Private: combines the rules of several schedules of one optimizer.
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
/// Each part changed the optimizer's rates at its construction, so later parts started from changed rates. Combined
/// gives every part the rates from before the first one; only parts with begins_at keep their own. PyTorch's optimizers
/// store these rates (initial_lr), LibTorch's do not.
class Combined {
 public:
  /// Restores the optimizer's rates from before the first component was created.
  /// \throws Error (usage) without components, and for components of another optimizer.
  Combined(torch::optim::Optimizer& optimizer, const std::vector<Scheduler>& schedules, std::string_view name);

  [[nodiscard]] size_t size() const { return parts_.size(); }
  [[nodiscard]] const Rule& rule(size_t part) const { return parts_[part].rule; }
  /// Parts in creation order.
  [[nodiscard]] const std::vector<size_t>& made() const { return made_; }
  /// "SequentialLR(LinearLR, StepLR)"
  [[nodiscard]] const std::string& name() const { return name_; }

  /// Rule::others_begin_at and Rule::begins_for_all of the combination.
  [[nodiscard]] const std::vector<double>& others_begin_at() const { return initial_; }
  [[nodiscard]] bool begins_for_all() const;
  /// True if a part changes the momentum.
  [[nodiscard]] bool changes_momentum() const;

  /// The position for that part, with its own base rate.
  [[nodiscard]] Position seen_by(size_t part, Position at) const;
  /// The state as PyTorch stores it. `steps` returns the steps of a part, or -1 if it was not active yet.
  [[nodiscard]] state::PythonSchedule python(const state::SchedulerState& whole,
                                             const std::function<int64_t(size_t part)>& steps) const;
  /// Rate of the optimizer before the first step: the start of the last part with begins_for_all.
  [[nodiscard]] double initial(const Position& at) const;

 private:
  struct Part {
    Rule rule;
    std::vector<double> base;  // if empty, the base of the combination
  };

  std::vector<Part> parts_;
  std::vector<size_t> made_;
  std::vector<double> initial_;  // if empty, the base of the combination
  std::string name_;
};

}  // namespace accelerate::optim
