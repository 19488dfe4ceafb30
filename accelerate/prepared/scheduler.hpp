// SPDX-License-Identifier: Apache-2.0
// A learning-rate schedule as prepare() returns it: it moves when the optimizer really stepped.
#pragma once

#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include <concepts>
#include <memory>
#include <utility>
#include <vector>

#include "accelerate/optim/schedules/scheduler.hpp"
#include "accelerate/prepared/shared.hpp"

namespace accelerate::prepared {

struct SchedulerOptions {
  /// False: every call of step() moves it, whatever the optimizer did.
  bool step_with_optimizer = true;
  /// How far one optimizer step moves it. 1: the schedule counts optimizer steps of the whole job. Hugging Face
  /// Accelerate moves it by the number of processes, for schedules written for one process.
  int64_t steps_per_optimizer_step = 1;
};

class SchedulerCore : public Entry {
 public:
  static constexpr Kind entry_kind = Kind::scheduler;
  SchedulerCore(const Shared& shared, const void* identity, const SchedulerOptions& options)
      : Entry(entry_kind, identity), shared_(&shared), options_(options) {}

  /// How many steps the schedule makes now: none within an accumulation window.
  [[nodiscard]] int64_t due() const {
    if (!options_.step_with_optimizer) return 1;
    return shared_->window.ends ? options_.steps_per_optimizer_step : 0;
  }

 private:
  const Shared* shared_;
  SchedulerOptions options_;
};

/// A handle: copies refer to the same prepared scheduler.
template <typename Scheduler>
class PreparedScheduler {
 public:
  PreparedScheduler(std::shared_ptr<Scheduler> scheduler, std::shared_ptr<SchedulerCore> core)
      : scheduler_(std::move(scheduler)), core_(std::move(core)) {}

  /// metric: for ReduceLROnPlateauScheduler
  template <typename... Metric>
  void step(Metric... metric) const {
    for (int64_t left = core_->due(); left > 0; --left) scheduler_->step(metric...);
  }
  Scheduler* operator->() const { return scheduler_.get(); }
  Scheduler& operator*() const { return *scheduler_; }
  [[nodiscard]] const std::shared_ptr<Scheduler>& unwrap() const { return scheduler_; }
  [[nodiscard]] std::vector<double> get_last_lr() const requires std::derived_from<Scheduler, optim::Scheduler> {
    return scheduler_->get_last_lr();
  }
  [[nodiscard]] const std::shared_ptr<SchedulerCore>& core_ptr() const { return core_; }

  friend bool operator==(const PreparedScheduler& a, const PreparedScheduler& b) {
    return a.scheduler_ == b.scheduler_;
  }

 private:
  std::shared_ptr<Scheduler> scheduler_;
  std::shared_ptr<SchedulerCore> core_;
};

}  // namespace accelerate::prepared
