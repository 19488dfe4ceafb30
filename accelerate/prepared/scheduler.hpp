// SPDX-License-Identifier: Apache-2.0
// The prepared form of a learning-rate schedule: it advances only if the optimizer stepped.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include <concepts>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "accelerate/optim/schedules/reduce_on_plateau.hpp"
#include "accelerate/optim/schedules/scheduler.hpp"
#include "accelerate/prepared/accelerator_state.hpp"
#include "accelerate/prepared/handle.hpp"

namespace accelerate::prepared {

struct SchedulerOptions {
  /// If false, every call of step() advances the schedule, regardless of the optimizer.
  bool step_with_optimizer = true;
  /// Number of schedule steps per optimizer step. With 1, the schedule counts optimizer steps of the whole job. Hugging
  /// Face Accelerate uses the number of processes, for schedules written for one process.
  int64_t steps_per_optimizer_step = 1;
};

/// Detects calls of step() at the last step of a schedule.
class ScheduleEnd {
 public:
  /// \param moves  Schedule steps per optimizer step.
  ScheduleEnd(RankContext place, int64_t moves) : place_(std::move(place)), expected_(moves) {}
  /// Returns true if the schedule is at its last step. Logs a warning once if more than one optimizer step follows it.
  bool reached(const optim::Scheduler& scheduler);

 private:
  RankContext place_;
  int64_t expected_;  // calls at the last step until the warning
};

class SchedulerCore : public Entry {
 public:
  static constexpr Kind kEntryKind = Kind::scheduler;
  SchedulerCore(const AcceleratorState& shared, const void* identity, const SchedulerOptions& options);

  /// Calls `move` as often as due: not within an accumulation window, and not if loss scaling skipped the step that the
  /// schedule follows. On an accelerator that is known late; `move` then runs before the next step or in
  /// run_deferred_schedules().
  /// \param optimizer  Optimizer of the schedule. If null, the schedule follows all prepared optimizers.
  void step(const torch::optim::Optimizer* optimizer, std::function<void()> move) const;
  /// Runs the deferred schedule steps. Waits for the last step's flag if one depends on it.
  void run_deferred_schedules() const;
  /// For a schedule that follows a metric: returns true if it takes a metric now. With step_with_optimizer it takes
  /// none before the end of an accumulation window.
  [[nodiscard]] bool takes_metric() const;
  /// Returns the mean of all ranks' metrics, bitwise equal on every rank. Collective.
  [[nodiscard]] double average_over_ranks(double metric) const;
  [[nodiscard]] const std::shared_ptr<ScheduleEnd>& end() const { return end_; }
  /// Has no handles for LibTorch's ReduceLROnPlateauScheduler, which does not return its state.
  StateAccess<state::SchedulerState> access{};
  /// Optimizer with the rates that the schedule sets; null if unknown. Only for comparison, because it may dangle.
  const torch::optim::Optimizer* of = nullptr;

 private:
  const AcceleratorState* accelerator_state_;
  SchedulerOptions options_;
  std::shared_ptr<ScheduleEnd> end_;
};

/// Returns a function for the end of a join of uneven inputs, to be called on all ranks with the group and a root rank.
/// It copies the root's schedules and step count to all ranks, because ranks that ran out early made fewer steps.
/// Schedules that do not return their state are not changed.
[[nodiscard]] std::function<void(const comm::Group&, int64_t)> schedules_with_same_state(
    std::shared_ptr<AcceleratorState> shared);

template <typename Scheduler>
concept FollowsSteps = std::derived_from<Scheduler, optim::Scheduler>;
template <typename Scheduler>
concept FollowsMetric = std::derived_from<Scheduler, optim::ReduceLROnPlateau> ||
    std::derived_from<Scheduler, torch::optim::ReduceLROnPlateauScheduler>;
/// Schedules of this library: their rates can be read and their state can be saved.
template <typename Scheduler>
concept OurScheduler = FollowsSteps<Scheduler> || std::derived_from<Scheduler, optim::ReduceLROnPlateau>;

/// LibTorch's schedules except the plateau, and classes of the user that derive from them. They count their calls.
template <typename Scheduler>
concept LibTorchScheduler = std::derived_from<Scheduler, torch::optim::LRScheduler>;

/// Returns the type, the count and the current rates. Members that a user's type adds are not included.
[[nodiscard]] state::SchedulerState scheduler_state(torch::optim::LRScheduler& scheduler);
/// Sets the count. The optimizer contains the rates.
/// \throws Error (usage) if the state is of a schedule of another type.
/// \throws Error (data) if the count is out of range.
void load_state(torch::optim::LRScheduler& scheduler, const state::SchedulerState& state);

/// Handle of a prepared scheduler. Copies refer to the same scheduler. A default-constructed handle is empty, and its
/// use throws Error (usage) until a scheduler is assigned. A handle converts to a handle of a base class:
/// PreparedScheduler<optim::Scheduler> (accelerate::AnyScheduler) refers to any schedule of this library except
/// ReduceLROnPlateau. Not thread-safe: use it on the thread of its Accelerator.
template <typename Scheduler>
class PreparedScheduler {
 public:
  PreparedScheduler() = default;
  PreparedScheduler(std::shared_ptr<Scheduler> scheduler, std::shared_ptr<SchedulerCore> core)
      : scheduler_(std::move(scheduler)), core_(std::move(core)) {}
  template <typename Derived>
  requires(std::derived_from<Derived, Scheduler> && !std::same_as<Derived, Scheduler>)
      // NOLINTNEXTLINE(google-explicit-constructor): as shared_ptr converts
      PreparedScheduler(const PreparedScheduler<Derived>& scheduler)
      : scheduler_(scheduler.scheduler_), core_(scheduler.core_) {}

  [[nodiscard]] bool is_empty() const { return core_ == nullptr; }
  /// \throws Error (usage) if the handle is empty.
  void require_assigned() const { (void)assigned(core_, "PreparedScheduler"); }

  /// Must be called once after each optimizer.step(). A schedule with a known last step remains at it.
  template <typename... Arguments>
  void step(Arguments... arguments) const requires(!FollowsMetric<Scheduler>) {
    // A schedule without handles may be destroyed before the flag of the step arrives.
    core_ptr()->step(optimizer(), [weak = std::weak_ptr<Scheduler>(scheduler_), end = core_->end(), arguments...] {
      const auto scheduler = weak.lock();
      if (!scheduler) return;
      if constexpr (FollowsSteps<Scheduler>) {
        if (end->reached(*scheduler)) return;
      }
      scheduler->step(arguments...);
    });
  }
  /// Also advances after a step that fp16 skipped, because the metric describes the current weights and usually a whole
  /// epoch. Collective.
  /// \param metric  Metric of this rank. The schedule gets the mean over the ranks, so that all ranks have the same
  ///   rate.
  void step(double metric) const requires FollowsMetric<Scheduler> {
    if (!core_ptr()->takes_metric()) return;
    core_->run_deferred_schedules();  // of other schedules, which may set the rate from which this one continues
    const double mean = core_->average_over_ranks(metric);
    if constexpr (OurScheduler<Scheduler>) {
      scheduler_->step(mean);
    } else {
      scheduler_->step(static_cast<float>(mean));
    }
  }
  /// \param metric  Tensor with one element. Waits for the device.
  void step(const at::Tensor& metric) const requires FollowsMetric<Scheduler> { step(metric.item<double>()); }

  /// Accesses the schedule in its current state. With loss scaling on an accelerator this waits for the last step's
  /// flag.
  Scheduler* operator->() const { return &**this; }
  Scheduler& operator*() const {
    core_ptr()->run_deferred_schedules();
    return *scheduler_;
  }
  [[nodiscard]] const std::shared_ptr<Scheduler>& unwrap() const { return assigned(scheduler_, "PreparedScheduler"); }
  [[nodiscard]] std::vector<double> get_last_lr() const requires OurScheduler<Scheduler> {
    return (**this).get_last_lr();
  }
  [[nodiscard]] state::SchedulerState state() const requires OurScheduler<Scheduler> { return (**this).state(); }
  void load_state(const state::SchedulerState& state) const requires OurScheduler<Scheduler> {
    (**this).load_state(state);
  }
  [[nodiscard]] const std::shared_ptr<SchedulerCore>& core_ptr() const { return assigned(core_, "PreparedScheduler"); }

  friend bool operator==(const PreparedScheduler& a, const PreparedScheduler& b) {
    return a.scheduler_ == b.scheduler_;
  }

 private:
  template <typename>
  friend class PreparedScheduler;

  [[nodiscard]] const torch::optim::Optimizer* optimizer() const {
    if constexpr (std::derived_from<Scheduler, optim::Scheduler>) return &scheduler_->optimizer();
    return nullptr;
  }

  std::shared_ptr<Scheduler> scheduler_;
  std::shared_ptr<SchedulerCore> core_;
};

}  // namespace accelerate::prepared
