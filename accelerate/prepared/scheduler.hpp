// SPDX-License-Identifier: Apache-2.0
// A learning-rate schedule as prepare() returns it: it moves when the optimizer really stepped.
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
#include "accelerate/prepared/handle.hpp"
#include "accelerate/prepared/shared.hpp"

namespace accelerate::prepared {

struct SchedulerOptions {
  /// False: every call of step() moves it, whatever the optimizer did.
  bool step_with_optimizer = true;
  /// How far one optimizer step moves it. 1: the schedule counts optimizer steps of the whole job. Hugging Face
  /// Accelerate moves it by the number of processes, for schedules written for one process.
  int64_t steps_per_optimizer_step = 1;
};

/// What a prepared schedule does once it stands at its last step.
class ScheduleEnd {
 public:
  /// moves   that one optimizer step makes
  ScheduleEnd(Place place, int64_t moves) : place_(std::move(place)), expected_(moves) {}
  /// Whether it stands there. One optimizer step may find it so; for more it says, once, that training goes on.
  bool reached(const optim::Scheduler& scheduler);

 private:
  Place place_;
  int64_t expected_;  // moves that are not made, before it speaks
};

class SchedulerCore : public Entry {
 public:
  static constexpr Kind entry_kind = Kind::scheduler;
  SchedulerCore(const Shared& shared, const void* identity, const SchedulerOptions& options);

  /// Calls move as often as is due: not within an accumulation window, nor where loss scaling skipped the step that the
  /// schedule follows. That is known late on an accelerator: then before the next step, or in move_what_is_owed().
  /// optimizer   that the schedule belongs to; null: not known, it follows all prepared ones
  void step(const torch::optim::Optimizer* optimizer, std::function<void()> move) const;
  /// Waits for the last step's flag where a move depends on it.
  void move_what_is_owed() const;
  /// Of a schedule that follows a metric: it hears of each but within a window, once.
  [[nodiscard]] bool hears_metric() const;
  /// Collective. The mean of all ranks' metrics, to the last bit the same on each.
  [[nodiscard]] double mean_over_ranks(double metric) const;
  [[nodiscard]] const std::shared_ptr<ScheduleEnd>& end() const { return end_; }
  /// Empty for LibTorch's ReduceLROnPlateauScheduler, which cannot say where it stands.
  StateAccess<state::SchedulerState> access{};
  /// Whose rates it moves; null: not known. To be compared with, not to be used.
  const torch::optim::Optimizer* of = nullptr;

 private:
  const Shared* shared_;
  SchedulerOptions options_;
  std::shared_ptr<ScheduleEnd> end_;
};

/// For the end of a join of uneven inputs: every schedule, and the count of steps, becomes that of one rank, for those
/// that ran out early have made fewer steps. Schedules that cannot say where they stand stay.
/// returns   to be called on all ranks with the group and that rank
[[nodiscard]] std::function<void(const comm::Group&, int64_t)> equal_schedules_of(std::shared_ptr<Shared> shared);

template <typename Scheduler>
concept FollowsSteps = std::derived_from<Scheduler, optim::Scheduler>;
template <typename Scheduler>
concept FollowsMetric = std::derived_from<Scheduler, optim::ReduceLROnPlateau> ||
    std::derived_from<Scheduler, torch::optim::ReduceLROnPlateauScheduler>;
/// Those of this library: their rates can be asked for, their state saved.
template <typename Scheduler>
concept OurScheduler = FollowsSteps<Scheduler> || std::derived_from<Scheduler, optim::ReduceLROnPlateau>;

/// LibTorch's own but the plateau, and the user's that derive from it: they count their calls.
template <typename Scheduler>
concept LibTorchScheduler = std::derived_from<Scheduler, torch::optim::LRScheduler>;

/// Its type, its count and the rates in force; what a type of the user's adds is not in it.
[[nodiscard]] state::SchedulerState state_of(torch::optim::LRScheduler& scheduler);
/// Sets the count; the rates are the optimizer's. Throws Error: usage for a schedule of another type, data for a count
/// that is none.
void load_state(torch::optim::LRScheduler& scheduler, const state::SchedulerState& state);

/// A handle: copies refer to the same prepared scheduler. A handle made without arguments is empty until one is
/// assigned; its use until then throws Error (usage). A handle converts to one of a base class:
/// PreparedScheduler<optim::Scheduler> (accelerate::AnyScheduler) is that of every schedule of this library but
/// ReduceLROnPlateau.
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

  /// Once after each optimizer.step(); a schedule whose last step is known rests there.
  template <typename... Arguments>
  void step(Arguments... arguments) const requires(!FollowsMetric<Scheduler>) {
    // A schedule whose last handle goes may be gone when the flag of a step comes.
    core_ptr()->step(optimizer(), [weak = std::weak_ptr<Scheduler>(scheduler_), end = core_->end(), arguments...] {
      const auto scheduler = weak.lock();
      if (!scheduler) return;
      if constexpr (FollowsSteps<Scheduler>) {
        if (end->reached(*scheduler)) return;
      }
      scheduler->step(arguments...);
    });
  }
  /// After a step that fp16 skipped too: what was measured is true of the weights as they are, and mostly of an epoch.
  /// metric   this rank's; the schedule is given the mean over the ranks, so that all have one rate. Collective.
  void step(double metric) const requires FollowsMetric<Scheduler> {
    if (!core_ptr()->hears_metric()) return;
    core_->move_what_is_owed();  // by others of this optimizer, from whose rates it goes on
    const double mean = core_->mean_over_ranks(metric);
    if constexpr (OurScheduler<Scheduler>) {
      scheduler_->step(mean);
    } else {
      scheduler_->step(static_cast<float>(mean));
    }
  }
  /// metric   one element; waits for the device
  void step(const at::Tensor& metric) const requires FollowsMetric<Scheduler> { step(metric.item<double>()); }

  /// The schedule as it stands now: with loss scaling on an accelerator this waits for the last step's flag.
  Scheduler* operator->() const { return &**this; }
  Scheduler& operator*() const {
    core_ptr()->move_what_is_owed();
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
