// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/sync_schedule.hpp"

#include <fmt/format.h>

#include "tests/testing.hpp"

using namespace accelerate;
using namespace accelerate::gradient;

namespace {

// Returns "(sync,step)" for every micro-batch of the epochs, as in hf_accelerate_behaviour.md section 8.
std::vector<std::string> run(int64_t micro_batches, const SyncOptions& options, int epochs) {
  SyncState state;
  std::vector<std::string> decisions;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    std::string line;
    for (int64_t i = 1; i <= micro_batches; ++i) {
      const SyncDecision decision = next_micro_batch(state, options, i == micro_batches);
      state = decision.next;
      line += fmt::format("{}{},{}", line.empty() ? "" : " ", decision.sync ? 1 : 0, state.step);
    }
    decisions.push_back(line);
  }
  return decisions;
}

using Epochs = std::vector<std::string>;

}  // namespace

TEST_CASE("accumulate counts as in Accelerate") {
  const std::string ten = "0,1 0,2 0,3 1,4 0,5 0,6 0,7 1,8 0,9 1,0";
  CHECK(run(10, {.steps = 4}, 2) == Epochs{ten, ten});
  CHECK(run(10, {.steps = 4, .sync_with_dataloader = false}, 2) ==
        Epochs{"0,1 0,2 0,3 1,4 0,5 0,6 0,7 1,8 0,9 0,10", "0,11 1,12 0,13 0,14 0,15 1,16 0,17 0,18 0,19 1,20"});
  const std::string twelve = "0,1 1,2 0,3 1,4 0,5 1,6 0,7 1,8 0,9 1,10 0,11 1,0";
  CHECK(run(12, {.steps = 2}, 2) == Epochs{twelve, twelve});
  CHECK(run(6, {.steps = 4}, 2) == Epochs{"0,1 0,2 0,3 1,4 0,5 1,0", "0,1 0,2 0,3 1,4 0,5 1,0"});
  CHECK(run(3, {}, 1) == Epochs{"1,1 1,2 1,0"});
}

TEST_CASE("a short last window is multiplied by k/m on its last micro-batch only") {
  SyncState state;
  std::vector<double> scales;
  for (int i = 1; i <= 6; ++i) {
    const SyncDecision decision = next_micro_batch(state, {.steps = 4}, i == 6);
    state = decision.next;
    scales.push_back(decision.scale);
  }
  CHECK(scales == std::vector<double>{1, 1, 1, 1, 1, 2});
}

TEST_CASE("Accelerate's division does not scale a short last window") {
  const SyncOptions options{.steps = 4, .short_window = ShortWindow::full_length};
  CHECK(next_micro_batch({.step = 4, .window = 1}, options, true).scale == 1.0);
}

TEST_CASE("a full last window is not scaled, also if windows span epochs") {
  CHECK(next_micro_batch({.step = 3, .window = 3}, {.steps = 4}, true) ==
        SyncDecision{.sync = true, .reduce = true, .scale = 1.0, .next = {.step = 0, .window = 0}});
  const SyncOptions crossing{.steps = 4, .sync_with_dataloader = false};
  CHECK(next_micro_batch({.step = 11, .window = 3}, crossing, false) ==
        SyncDecision{.sync = true, .reduce = true, .scale = 1.0, .next = {.step = 12, .window = 0}});
}

TEST_CASE("sync_each_batch reduces every micro-batch and still steps at the ends of windows") {
  const SyncOptions options{.steps = 2, .sync_each_batch = true};
  const SyncDecision first = next_micro_batch({}, options, false);
  CHECK(first == SyncDecision{.sync = false, .reduce = true, .scale = 1.0, .next = {.step = 1, .window = 1}});
  CHECK(next_micro_batch(first.next, options, false).sync);
}

TEST_CASE("the number of micro-batches may change between calls, and a shortened window is scaled") {
  const SyncDecision decision = next_micro_batch({.step = 3, .window = 1}, {.steps = 4}, false);
  CHECK(decision.sync);
  CHECK(decision.scale == 2.0);
}

TEST_CASE("zero micro-batches per step are refused with the value in the message") {
  const RankContext here{.rank = 0, .world_size = 2, .host = "gpu-a"};
  CHECK_THROWS_WITH((void)next_micro_batch({}, {.steps = 0}, false, here),
                    "[rank 0 of 2, gpu-a] accumulate: gradient_accumulation_steps is 0, must be at least 1");
}
