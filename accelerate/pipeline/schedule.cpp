// SPDX-License-Identifier: Apache-2.0
#include "accelerate/pipeline/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "accelerate/base/error.hpp"
#include "accelerate/pipeline/compute_order.hpp"
#include "accelerate/pipeline/timeline.hpp"

namespace accelerate::pipeline {
namespace {

constexpr std::array<std::string_view, 3> kScheduleNames{"gpipe", "1f1b", "interleaved"};
constexpr std::array<std::string_view, 6> kActionNames{"F", "B", "SEND_F", "RECV_F", "SEND_B", "RECV_B"};

bool is_computation(const Action& action) {
  return action.kind == ActionKind::forward || action.kind == ActionKind::backward;
}

void check_positive(std::string_view what, int64_t value) {
  if (value < 1) base::fail(ErrorKind::usage, {}, "Pipeline", "{} is {}, must be at least 1", what, value);
}

/// The send and the receive that follow a computation, or nothing if its result stays on the stage.
std::vector<Action> transfer_after(const Action& computation, const Plan& plan) {
  const bool is_forward = computation.kind == ActionKind::forward;
  const int64_t target = computation.stage + (is_forward ? 1 : -1);
  if (target < 0 || target == plan.stages()) return {};
  Action send = computation, receive = computation;
  send.kind = is_forward ? ActionKind::send_activation : ActionKind::send_gradient;
  receive.kind = is_forward ? ActionKind::receive_activation : ActionKind::receive_gradient;
  receive.stage = target;
  receive.rank = send.peer = target % plan.ranks;
  receive.peer = computation.rank;
  return {send, receive};
}

/// Adds each transfer at the end of its computation and before the computations that begin then.
void add_transfers(Plan& plan, const std::vector<TimedAction>& timeline) {
  struct Entry {
    double time;
    bool is_computation;
    std::vector<Action> actions;
  };
  std::vector<Entry> entries;
  for (const auto& each : timeline) {
    entries.push_back({each.begin, true, {each.action}});
    entries.push_back({each.end, false, transfer_after(each.action, plan)});
  }
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.time != b.time ? a.time < b.time : a.is_computation < b.is_computation;
  });
  for (const auto& entry : entries) {
    plan.actions.insert(plan.actions.end(), entry.actions.begin(), entry.actions.end());
  }
}

Plan checked_sizes(int64_t ranks, int64_t micro_batches, int64_t stages_per_rank) {
  check_positive("the number of ranks", ranks);
  check_positive("micro_batches", micro_batches);
  check_positive("stages_per_rank", stages_per_rank);
  return {.ranks = ranks, .stages_per_rank = stages_per_rank, .micro_batches = micro_batches};
}

Plan planned(Plan plan, Schedule schedule) {
  std::vector<std::vector<Action>> orders;
  for (int64_t rank = 0; rank < plan.ranks; ++rank) orders.push_back(compute_order(schedule, rank, plan));
  add_transfers(plan, timeline_of(orders, {}));
  return plan;
}

}  // namespace

std::string_view schedule_name(Schedule schedule) { return kScheduleNames.at(static_cast<size_t>(schedule)); }

std::string describe_actions(const std::vector<Action>& actions) {
  std::string text;
  for (const auto& action : actions) {
    text += fmt::format("{}{}{}{}", text.empty() ? "" : " ", action.stage,
                        kActionNames.at(static_cast<size_t>(action.kind)), action.micro_batch);
  }
  return text;
}

std::vector<Action> Plan::actions_of(int64_t rank) const {
  std::vector<Action> mine;
  std::copy_if(actions.begin(), actions.end(), std::back_inserter(mine),
               [rank](const Action& action) { return action.rank == rank; });
  return mine;
}

Plan plan_step(Schedule schedule, int64_t ranks, int64_t micro_batches, int64_t stages_per_rank) {
  Plan sizes = checked_sizes(ranks, micro_batches, stages_per_rank);
  if (stages_per_rank > 1 && schedule != Schedule::interleaved) {
    base::fail(ErrorKind::usage, {}, "Pipeline",
               "stages_per_rank is {} with the schedule {}, must be 1; several stages per rank need the schedule "
               "interleaved",
               stages_per_rank, schedule_name(schedule));
  }
  return planned(std::move(sizes), schedule);
}

Plan plan_forward(int64_t ranks, int64_t micro_batches, int64_t stages_per_rank) {
  Plan plan = planned(checked_sizes(ranks, micro_batches, stages_per_rank), Schedule::gpipe);
  std::erase_if(plan.actions, [](const Action& action) {
    return action.kind == ActionKind::backward || action.kind == ActionKind::send_gradient ||
           action.kind == ActionKind::receive_gradient;
  });
  return plan;
}

double bubble_share(const Plan& plan, const StageCosts& costs) {
  std::vector<std::vector<Action>> orders;
  for (int64_t rank = 0; rank < plan.ranks; ++rank) {
    orders.push_back(plan.actions_of(rank));
    std::erase_if(orders.back(), [](const Action& action) { return !is_computation(action); });
  }
  double work = 0, end = 0;
  for (const auto& each : timeline_of(orders, costs)) {
    work += each.end - each.begin;
    end = std::max(end, each.end);
  }
  return end > 0 ? 1 - work / (end * static_cast<double>(plan.ranks)) : 0;
}

int64_t peak_live_activations(const Plan& plan, int64_t rank) {
  int64_t live = 0, peak = 0;
  for (const auto& action : plan.actions) {
    if (action.rank != rank) continue;
    if (action.kind == ActionKind::forward) peak = std::max(peak, ++live);
    if (action.kind == ActionKind::backward) --live;
  }
  return peak;
}

}  // namespace accelerate::pipeline
