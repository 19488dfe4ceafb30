// SPDX-License-Identifier: Apache-2.0
// What ranks as threads cannot show: they share one generator.
#include "tests/testing.hpp"
//
#include "accelerate/accelerate.hpp"
#include "tests/world.hpp"

using accelerate::Accelerator;

TEST_CASE("random states are rank 0's after synchronisation, on every rank") {
  Accelerator accelerator(testing::world(), {.cpu = true});
  torch::manual_seed(100 + static_cast<uint64_t>(accelerator.process_index()));
  const auto before = accelerator.gather(torch::rand({1}));
  if (accelerator.use_distributed()) CHECK_FALSE(before[0].equal(before[1]));
  accelerator.synchronize_rng_states();
  const auto after = accelerator.gather(torch::rand({3}).reshape({1, 3}));
  for (int64_t rank = 1; rank < accelerator.num_processes(); ++rank) CHECK(after[rank].equal(after[0]));
}

TEST_CASE("set_seed gives every rank the same numbers, device_specific each its own") {
  Accelerator accelerator(testing::world(), {.cpu = true});
  accelerator.set_seed(7);
  const auto same = accelerator.gather(torch::rand({1}));
  CHECK(same.eq(same[0]).all().item<bool>());
  accelerator.set_seed(7, {.device_specific = true});
  const auto each = accelerator.gather(torch::rand({1}));
  if (accelerator.use_distributed()) CHECK_FALSE(each[0].equal(each[1]));
}
