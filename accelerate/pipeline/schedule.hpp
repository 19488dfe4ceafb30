// SPDX-License-Identifier: Apache-2.0
// Schedules of pipeline parallelism as values: the order of forwards, backwards and transfers on each rank.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::pipeline {

/// Stage s is on rank s % ranks.
enum class Schedule {
  /// All forwards, then all backwards. Every micro-batch's activations are live at the same time.
  gpipe,
  /// 1F1B: after a warm-up of (ranks - 1 - rank) forwards, a forward and a backward alternate. The bubble is that of
  /// GPipe, but only (ranks - rank) micro-batches are live.
  one_forward_one_backward,
  /// Interleaved 1F1B: each rank has several stages, so that the bubble is shorter by that factor.
  interleaved,
};

/// "gpipe", "1f1b" or "interleaved".
[[nodiscard]] std::string_view schedule_name(Schedule schedule);

enum class ActionKind {
  forward,
  backward,
  send_activation,     ///< output of the stage to the next stage
  receive_activation,  ///< input of the stage from the previous stage
  send_gradient,       ///< gradient of the stage's input to the previous stage
  receive_gradient,    ///< gradient of the stage's output from the next stage
};

struct Action {
  ActionKind kind = ActionKind::forward;
  int64_t rank = 0;         ///< rank that executes the action
  int64_t stage = 0;        ///< stage on that rank
  int64_t micro_batch = 0;  ///< 0 .. micro_batches-1
  int64_t peer = -1;        ///< the other rank of a transfer; -1 for a computation

  bool operator==(const Action&) const = default;
};

/// Actions in PyTorch's notation, separated by blanks: "0F1" is the forward of micro-batch 1 in stage 0; further
/// actions are B, SEND_F, RECV_F, SEND_B and RECV_B.
[[nodiscard]] std::string describe_actions(const std::vector<Action>& actions);

/// One training step, or with forward_only() one evaluation.
struct Plan {
  int64_t ranks = 1;
  int64_t stages_per_rank = 1;
  int64_t micro_batches = 1;
  /// Actions of all ranks in one total order in which each action follows the actions that it needs. A rank executes
  /// its part of this order. Both ranks of a transfer have it at the same position among their common transfers, so
  /// that the plan cannot deadlock, even if a send blocks until its receive.
  std::vector<Action> actions{};

  [[nodiscard]] int64_t stages() const { return ranks * stages_per_rank; }
  [[nodiscard]] std::vector<Action> actions_of(int64_t rank) const;
};

/// Pure function. Thread-safe.
///
/// \param stages_per_rank  Number of stages on each rank; more than 1 only for `interleaved`.
/// \returns the same order of computations as torch.distributed.pipelining. `interleaved` divides the micro-batches
///   into max(1, micro_batches / ranks) rounds, of which the first ones are larger if they cannot be equal.
/// \throws Error (usage) if a number is less than 1, or for several stages per rank in another schedule.
[[nodiscard]] Plan plan_step(Schedule schedule, int64_t ranks, int64_t micro_batches, int64_t stages_per_rank = 1);

/// The forwards of all micro-batches, for evaluation.
/// \throws Error (usage) if a number is less than 1.
[[nodiscard]] Plan plan_forward(int64_t ranks, int64_t micro_batches, int64_t stages_per_rank = 1);

/// Duration of one forward and one backward of one stage.
struct StageCosts {
  double forward = 1;
  double backward = 1;
};

/// Share of the ranks' time in which they wait for other ranks, 0 to 1, if transfers take no time and all stages have
/// the same costs. GPipe and 1F1B: (p - 1) / (m + p - 1) for p ranks and m micro-batches; interleaved with v stages per
/// rank: (p - 1) / (v * m + p - 1) if p divides m.
[[nodiscard]] double bubble_share(const Plan& plan, const StageCosts& costs = {});

/// Largest number of (stage, micro-batch) pairs of one rank for which the forward has run and the backward has not.
[[nodiscard]] int64_t peak_live_activations(const Plan& plan, int64_t rank);

}  // namespace accelerate::pipeline

namespace accelerate {
using PipelineSchedule = pipeline::Schedule;
}
