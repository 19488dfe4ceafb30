// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/scheduler.hpp"

#include <ATen/ops/full.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Type.h>

#include <cmath>
#include <exception>
#include <limits>
#include <tuple>
#include <typeinfo>
#include <utility>

#include "accelerate/base/exception_text.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/comm/error_context.hpp"
#include "accelerate/prepared/loss_scaling.hpp"
#include "accelerate/prepared/optimizer.hpp"

namespace accelerate::prepared {

namespace {

// Accesses protected members of LibTorch's schedulers.
struct Kept : torch::optim::LRScheduler {
  static unsigned& count(torch::optim::LRScheduler& scheduler) { return scheduler.*&Kept::step_count_; }
  static std::vector<double> rates(const torch::optim::LRScheduler& scheduler) {
    return (scheduler.*&Kept::get_current_lrs)();
  }
};

std::string type_of(const torch::optim::LRScheduler& scheduler) { return c10::demangle(typeid(scheduler).name()); }

}  // namespace

// LibTorch's count is one ahead of Python's last_epoch, which a state contains: the n-th call of step() sets the rate
// that Python's call n - 1 sets.
state::SchedulerState scheduler_state(torch::optim::LRScheduler& scheduler) {
  return {.name = type_of(scheduler), .steps = int64_t{Kept::count(scheduler)} - 1, .last_lrs = Kept::rates(scheduler)};
}

void load_state(torch::optim::LRScheduler& scheduler, const state::SchedulerState& state) {
  const std::string type = type_of(scheduler);
  if (state.name != type) {
    base::fail(ErrorKind::usage, {}, "load_state",
               "the saved state is of the schedule {}, this one is {}; make the schedule that was saved", state.name,
               type);
  }
  constexpr unsigned most = std::numeric_limits<unsigned>::max();
  if (state.steps < -1 || state.steps >= most) {
    base::fail(ErrorKind::data, {}, "load_state", "the saved state of {} has {} steps, must be -1 to {}", type,
               state.steps, most - 1);
  }
  Kept::count(scheduler) = static_cast<unsigned>(state.steps + 1);
}

bool ScheduleEnd::reached(const optim::Scheduler& scheduler) {
  const auto& last = scheduler.last_step();
  if (!last || scheduler.steps() < *last) return false;
  // Training ends with a call of step() for which no rate may be left.
  if (--expected_ < 0) {
    base::log_once(base::LogLevel::warning, place_,
                   "scheduler.step: {} has ended after {} steps and keeps its last value; if training continues, make "
                   "it longer: it "
                   "counts optimizer steps of the whole job",
                   scheduler.name(), scheduler.steps());
  }
  return true;
}

SchedulerCore::SchedulerCore(const AcceleratorState& shared, const void* identity, const SchedulerOptions& options)
    : Entry(kEntryKind, identity),
      accelerator_state_(&shared),
      options_(options),
      end_(std::make_shared<ScheduleEnd>(shared.place, options.steps_per_optimizer_step)) {}

void SchedulerCore::step(const torch::optim::Optimizer* optimizer, std::function<void()> move) const {
  if (accelerator_state_->capturing) {
    base::fail(ErrorKind::usage, accelerator_state_->place, "scheduler.step",
               "{} is moved within a captured step, and its replays would not move it; call it after the "
               "graphed step",
               name());
  }
  if (!options_.step_with_optimizer) return move();
  if (!accelerator_state_->window.ends) return;
  auto moves = [move = std::move(move), times = options_.steps_per_optimizer_step] {
    for (int64_t left = times; left > 0; --left) move();
  };
  accelerator_state_->scaling ? accelerator_state_->scaling->after_step(optimizer, std::move(moves)) : moves();
}

void SchedulerCore::run_deferred_schedules() const {
  if (accelerator_state_->scaling) accelerator_state_->scaling->run_deferred_schedules();
}

bool SchedulerCore::takes_metric() const { return !options_.step_with_optimizer || accelerator_state_->window.ends; }

namespace {

/// Returns the part of a schedule's state that changes, as numbers. The rest is the same on all ranks.
std::vector<double> moving_part(const state::SchedulerState& state) {
  std::vector<double> numbers{static_cast<double>(state.steps)};
  numbers.insert(numbers.end(), state.last_lrs.begin(), state.last_lrs.end());
  numbers.insert(numbers.end(), state.momenta.begin(), state.momenta.end());
  if (const auto& plateau = state.plateau) {
    numbers.insert(numbers.end(),
                   {plateau->best, static_cast<double>(plateau->num_bad), static_cast<double>(plateau->cooldown)});
  }
  return numbers;
}

/// Returns the rates of all prepared optimizers, which contain the rates of LibTorch's schedules. The rate is NaN if
/// the options of a group have none.
std::vector<double> rates_of(AcceleratorState& shared) {
  std::vector<double> rates;
  for (const OptimizerCore& optimizer : shared.registry.of<OptimizerCore>()) {
    for (const auto& group : optimizer.optimizer().param_groups()) {
      try {
        rates.push_back(group.options().get_lr());
      } catch (const c10::Error&) {  // options of a user's type
        rates.push_back(std::numeric_limits<double>::quiet_NaN());
      }
    }
  }
  return rates;
}

void set_rates(AcceleratorState& shared, const double* rates) {
  for (const OptimizerCore& optimizer : shared.registry.of<OptimizerCore>()) {
    for (auto& group : optimizer.optimizer().param_groups()) {
      if (!std::isnan(*rates)) group.options().set_lr(*rates);
      ++rates;
    }
  }
}

/// Copies the numbers of another rank's schedule of the same kind and groups into the state.
/// \param numbers  Points to the first of them.
/// \returns Pointer past the last of them.
const double* take_moving_part(state::SchedulerState& state, const double* numbers) {
  state.steps = static_cast<int64_t>(*numbers++);
  for (double& rate : state.last_lrs) rate = *numbers++;
  for (double& momentum : state.momenta) momentum = *numbers++;
  if (auto& plateau = state.plateau) {
    plateau->best = *numbers++;
    plateau->num_bad = static_cast<int64_t>(*numbers++);
    plateau->cooldown = static_cast<int64_t>(*numbers++);
  }
  return numbers;
}

}  // namespace

std::function<void(const comm::Group&, int64_t)> schedules_with_same_state(std::shared_ptr<AcceleratorState> shared) {
  return [shared = std::move(shared)](const comm::Group& group, int64_t root) {
    shared->watch.release_all();      // a join has made the parameters equal
    std::exception_ptr at_its_floor;  // thrown after the collective, because only this rank may fail
    if (shared->scaling) {
      at_its_floor = base::capture_exception([&] {
        shared->scaling->run_deferred_schedules();
        std::ignore = shared->scaling->any_was_skipped();
      });
    }
    std::vector<double> numbers{static_cast<double>(shared->steps)};
    for (const SchedulerCore& schedule : shared->registry.of<SchedulerCore>()) {
      const auto state = schedule.access.get();
      if (!state) continue;
      const auto part = moving_part(*state);
      numbers.insert(numbers.end(), part.begin(), part.end());
    }
    const auto rates = rates_of(*shared);
    numbers.insert(numbers.end(), rates.begin(), rates.end());
    const at::Tensor all = at::tensor(numbers, at::kDouble);
    comm::with_operation_context("join_uneven_inputs", "the schedules are not made equal at the end", shared->place,
                                 [&] { group.broadcast(all, root); });
    if (at_its_floor) std::rethrow_exception(at_its_floor);
    const double* next = all.const_data_ptr<double>();
    shared->steps = static_cast<int64_t>(*next++);
    for (const SchedulerCore& schedule : shared->registry.of<SchedulerCore>()) {
      auto state = schedule.access.get();
      if (!state) continue;
      next = take_moving_part(*state, next);
      if (group.rank() != root) schedule.access.set(*state);
    }
    if (group.rank() != root) set_rates(*shared, next);
  };
}

double SchedulerCore::average_over_ranks(double metric) const {
  if (accelerator_state_->group.size() == 1) return metric;
  // Gathers instead of reducing, so that every rank adds up in the same order.
  const auto all = comm::with_operation_context(
      "scheduler.step", "the metric is not averaged", accelerator_state_->place,
      [&] { return accelerator_state_->group.all_gather(at::full({1}, metric, at::kDouble)); });
  return all.mean().item<double>();
}

}  // namespace accelerate::prepared
