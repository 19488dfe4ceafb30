// SPDX-License-Identifier: Apache-2.0
#include "accelerate/pipeline/schedule.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <vector>

#include "tests/refusal.hpp"

namespace schedule_testing {
namespace {

using namespace accelerate::pipeline;
using testing::refusal;

struct Sizes {
  Schedule schedule;
  int64_t ranks, micro_batches, stages_per_rank;
};

std::vector<Sizes> all_sizes() {
  std::vector<Sizes> all;
  for (int64_t ranks = 1; ranks <= 5; ++ranks) {
    for (int64_t micro_batches = 1; micro_batches <= 9; ++micro_batches) {
      all.push_back({Schedule::gpipe, ranks, micro_batches, 1});
      all.push_back({Schedule::one_forward_one_backward, ranks, micro_batches, 1});
      for (int64_t stages = 1; stages <= 3; ++stages) {
        all.push_back({Schedule::interleaved, ranks, micro_batches, stages});
      }
    }
  }
  return all;
}

std::string computations(const Plan& plan, int64_t rank) {
  auto actions = plan.actions_of(rank);
  std::erase_if(actions, [](const Action& each) { return each.peer >= 0; });
  return describe_actions(actions);
}

/// Executes the ranks' programs with sends that block until the peer executes the matching receive, and computations
/// that need their inputs. Returns the number of actions that were executed before no rank could continue.
class BlockingRanks {
 public:
  explicit BlockingRanks(const Plan& plan) : plan_(plan), next_(static_cast<size_t>(plan.ranks), 0) {
    for (int64_t rank = 0; rank < plan.ranks; ++rank) programs_.push_back(plan.actions_of(rank));
  }

  size_t run() {
    size_t executed = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < programs_.size(); ++rank) {
        while (const size_t count = advance(rank)) {
          executed += count;
          moved = true;
        }
      }
    }
    return executed;
  }

 private:
  [[nodiscard]] const Action* current(size_t rank) const {
    return next_[rank] < programs_[rank].size() ? &programs_[rank][next_[rank]] : nullptr;
  }

  size_t advance(size_t rank) {
    const Action* action = current(rank);
    if (action == nullptr) return 0;
    if (action->peer < 0) {
      if (!can_compute(*action)) return 0;
      ++next_[rank];
      computed_.insert({action->kind, action->stage, action->micro_batch});
      return 1;
    }
    const bool sends_activation = action->kind == ActionKind::send_activation;
    const bool sends_gradient = action->kind == ActionKind::send_gradient;
    if (!sends_activation && !sends_gradient) return 0;  // executed together with its send
    const Action* other = nullptr;
    if (plan_.ranks == 1) {  // a rank that sends to itself: the receive is its next action
      if (next_[rank] + 1 < programs_[rank].size()) other = &programs_[rank][next_[rank] + 1];
    } else {
      other = current(static_cast<size_t>(action->peer));
    }
    const auto wanted = sends_activation ? ActionKind::receive_activation : ActionKind::receive_gradient;
    const int64_t stage = action->stage + (sends_activation ? 1 : -1);
    if (other == nullptr || other->kind != wanted || other->stage != stage ||
        other->micro_batch != action->micro_batch || other->peer != action->rank) {
      return 0;
    }
    received_.insert({wanted, stage, action->micro_batch});
    ++next_[rank];
    ++next_[static_cast<size_t>(action->peer)];
    return 2;
  }

  [[nodiscard]] bool can_compute(const Action& action) const {
    const auto has = [&](const auto& set, ActionKind kind) {
      return set.contains({kind, action.stage, action.micro_batch});
    };
    if (has(computed_, action.kind)) return false;
    if (action.kind == ActionKind::forward) return action.stage == 0 || has(received_, ActionKind::receive_activation);
    return has(computed_, ActionKind::forward) &&
           (action.stage == plan_.stages() - 1 || has(received_, ActionKind::receive_gradient));
  }

  const Plan& plan_;
  std::vector<std::vector<Action>> programs_;
  std::vector<size_t> next_;
  std::set<std::tuple<ActionKind, int64_t, int64_t>> computed_, received_;
};

}  // namespace

TEST_CASE("GPipe runs all forwards, then all backwards; the transfers follow their computations") {
  const Plan plan = plan_step(Schedule::gpipe, 2, 3);
  CHECK(describe_actions(plan.actions_of(0)) ==
        "0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2 0RECV_B0 0B0 0RECV_B1 0B1 0RECV_B2 0B2");
  CHECK(describe_actions(plan.actions_of(1)) ==
        "1RECV_F0 1F0 1RECV_F1 1F1 1RECV_F2 1F2 1B0 1SEND_B0 1B1 1SEND_B1 1B2 1SEND_B2");
}

TEST_CASE("1F1B alternates after a warm-up of the later ranks' number") {
  const Plan plan = plan_step(Schedule::one_forward_one_backward, 3, 4);
  CHECK(computations(plan, 0) == "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3");
  CHECK(computations(plan, 1) == "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3");
  CHECK(computations(plan, 2) == "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3");
  CHECK(describe_actions(plan_step(Schedule::one_forward_one_backward, 2, 2).actions_of(0)) ==
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1");
}

TEST_CASE("interleaved 1F1B runs rounds of micro-batches through the stages of a rank") {
  const Plan plan = plan_step(Schedule::interleaved, 2, 4, 2);
  CHECK(computations(plan, 0) == "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3");
  CHECK(computations(plan, 1) == "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3");
  CHECK(describe_actions(plan_step(Schedule::interleaved, 1, 1, 2).actions) ==
        "0F0 0SEND_F0 1RECV_F0 1F0 1B0 1SEND_B0 0RECV_B0 0B0");
}

TEST_CASE("an evaluation has the forwards only") {
  CHECK(describe_actions(plan_forward(2, 2).actions) == "0F0 0SEND_F0 1RECV_F0 0F1 1F0 0SEND_F1 1RECV_F1 1F1");
  CHECK(computations(plan_forward(2, 2, 2), 1) == "1F0 1F1 3F0 3F1");
}

TEST_CASE("every plan ends even if sends block until their receive, and computes each micro-batch once per stage") {
  for (const auto& sizes : all_sizes()) {
    CAPTURE(schedule_name(sizes.schedule));
    CAPTURE(sizes.ranks);
    CAPTURE(sizes.micro_batches);
    CAPTURE(sizes.stages_per_rank);
    for (const bool training : {true, false}) {
      const Plan plan = training ? plan_step(sizes.schedule, sizes.ranks, sizes.micro_batches, sizes.stages_per_rank)
                                 : plan_forward(sizes.ranks, sizes.micro_batches, sizes.stages_per_rank);
      const int64_t transfers = 2 * (plan.stages() - 1), directions = training ? 2 : 1;
      CHECK(static_cast<int64_t>(plan.actions.size()) == plan.micro_batches * directions * (plan.stages() + transfers));
      CHECK(BlockingRanks(plan).run() == plan.actions.size());
    }
  }
}

TEST_CASE("the simulator finds a deadlock") {
  Plan plan = plan_step(Schedule::one_forward_one_backward, 2, 2);
  const auto send = std::find_if(plan.actions.begin(), plan.actions.end(),
                                 [](const Action& each) { return each.kind == ActionKind::send_activation; });
  std::rotate(send, send + 1, std::find_if(send, plan.actions.end(), [](const Action& each) {
                return each.kind == ActionKind::backward && each.rank == 0;
              }));
  CHECK(BlockingRanks(plan).run() < plan.actions.size());
}

TEST_CASE("the bubble is (p-1)/(m+p-1), and with v stages per rank (p-1)/(v*m+p-1)") {
  for (const auto& [schedule, ranks, micro_batches, stages] : all_sizes()) {
    const bool equal_rounds = micro_batches % ranks == 0;
    if (schedule == Schedule::interleaved && !equal_rounds) continue;
    CAPTURE(schedule_name(schedule));
    CAPTURE(ranks);
    CAPTURE(micro_batches);
    CAPTURE(stages);
    const double expected = static_cast<double>(ranks - 1) / static_cast<double>(stages * micro_batches + ranks - 1);
    const Plan plan = plan_step(schedule, ranks, micro_batches, stages);
    CHECK(bubble_share(plan) == doctest::Approx(expected).epsilon(1e-12));
    if (schedule != Schedule::interleaved) {
      CHECK(bubble_share(plan, {.forward = 1, .backward = 2}) == doctest::Approx(expected).epsilon(1e-12));
    }
  }
}

TEST_CASE("live activations: all micro-batches in GPipe, one per later rank and one more in 1F1B") {
  for (const auto& [schedule, ranks, micro_batches, stages] : all_sizes()) {
    const Plan plan = plan_step(schedule, ranks, micro_batches, stages);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const int64_t peak = peak_live_activations(plan, rank);
      switch (schedule) {
        case Schedule::gpipe:
          CHECK(peak == micro_batches);
          break;
        case Schedule::one_forward_one_backward:
          CHECK(peak == std::min(ranks - rank, micro_batches));
          break;
        case Schedule::interleaved: {
          const int64_t rounds = std::max<int64_t>(1, micro_batches / ranks);
          const int64_t round = (micro_batches + rounds - 1) / rounds;
          CHECK(peak == std::min((stages - 1) * round + 2 * (ranks - 1 - rank) + 1, stages * micro_batches));
          break;
        }
      }
    }
  }
}

TEST_CASE("wrong sizes are refused") {
  CHECK(refusal([] { return plan_step(Schedule::gpipe, 0, 1); }) ==
        "Pipeline: the number of ranks is 0, must be at least 1");
  CHECK(refusal([] { return plan_step(Schedule::gpipe, 2, 0); }) == "Pipeline: micro_batches is 0, must be at least 1");
  CHECK(refusal([] { return plan_forward(2, 1, -1); }) == "Pipeline: stages_per_rank is -1, must be at least 1");
  CHECK(refusal([] { return plan_step(Schedule::one_forward_one_backward, 2, 4, 2); }) ==
        "Pipeline: stages_per_rank is 2 with the schedule 1f1b, must be 1; several stages per rank need the schedule "
        "interleaved");
}

}  // namespace schedule_testing
