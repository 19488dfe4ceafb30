// SPDX-License-Identifier: Apache-2.0
// Prints plans for schedule_parity.py: "gpipe 2 3 1 0: 0F0 0F1 ..." has schedule, ranks, micro-batches, stages per rank
// and rank, then the computations of this rank.
#include <cstdio>
#include <string>

#include "accelerate/pipeline/schedule.hpp"

namespace {

using namespace accelerate::pipeline;

void print(Schedule schedule, int64_t ranks, int64_t micro_batches, int64_t stages) {
  const Plan plan = plan_step(schedule, ranks, micro_batches, stages);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    auto actions = plan.actions_of(rank);
    std::erase_if(actions, [](const Action& each) { return each.peer >= 0; });
    std::printf("%s %d %d %d %d: %s\n", std::string(schedule_name(schedule)).c_str(), static_cast<int>(ranks),
                static_cast<int>(micro_batches), static_cast<int>(stages), static_cast<int>(rank),
                describe_actions(actions).c_str());
  }
}

}  // namespace

int main() {
  for (int64_t ranks = 1; ranks <= 5; ++ranks) {
    for (int64_t micro_batches = 1; micro_batches <= 12; ++micro_batches) {
      print(Schedule::gpipe, ranks, micro_batches, 1);
      print(Schedule::one_forward_one_backward, ranks, micro_batches, 1);
      for (int64_t stages = 1; stages <= 3; ++stages) print(Schedule::interleaved, ranks, micro_batches, stages);
    }
  }
}
