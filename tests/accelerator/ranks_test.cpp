// SPDX-License-Identifier: Apache-2.0
// Cases that ranks as threads cannot test, because they share one generator.
#include "tests/testing.hpp"
//
#include "accelerate/accelerate.hpp"
#include "tests/world.hpp"

using accelerate::Accelerator;

TEST_CASE("random states are equal to rank 0's on every rank after synchronisation") {
  Accelerator accelerator(testing::world(), {.cpu = true});
  torch::manual_seed(100 + static_cast<uint64_t>(accelerator.process_index()));
  const auto before = accelerator.gather(torch::rand({1}));
  if (accelerator.use_distributed()) CHECK_FALSE(before[0].equal(before[1]));
  accelerator.synchronize_rng_states();
  const auto after = accelerator.gather(torch::rand({3}).reshape({1, 3}));
  for (int64_t rank = 1; rank < accelerator.num_processes(); ++rank) CHECK(after[rank].equal(after[0]));
}

TEST_CASE("set_seed() produces the same numbers on every rank, and different ones with device_specific") {
  Accelerator accelerator(testing::world(), {.cpu = true});
  accelerator.set_seed(7);
  const auto same = accelerator.gather(torch::rand({1}));
  CHECK(same.eq(same[0]).all().item<bool>());
  accelerator.set_seed(7, {.device_specific = true});
  const auto each = accelerator.gather(torch::rand({1}));
  if (accelerator.use_distributed()) CHECK_FALSE(each[0].equal(each[1]));
}

TEST_CASE("dispatch sends each rank its batch over every backend") {
  Accelerator accelerator(testing::world(), {.cpu = true, .dispatch_batches = true});
  using Named = std::map<std::string, std::pair<torch::Tensor, std::string>>;
  std::vector<Named> batches;
  for (int64_t i = 0; i < 5; ++i)
    batches.push_back({{"x", {torch::full({1 + i, 2}, i), "batch " + std::to_string(i)}}});
  auto loader = accelerator.prepare(batches);
  int64_t number = 0;
  for (auto& batch : loader) {
    const auto& [tensor, name] = batch.at("x");
    const int64_t which = tensor[0][0].item<int64_t>();
    if (accelerator.process_index() + number * accelerator.num_processes() < 4) {
      CHECK(which == accelerator.process_index() + number * accelerator.num_processes());
      CHECK(tensor.size(0) == 1 + which);
    }
    CHECK(name == "batch " + std::to_string(which));
    ++number;
  }
  CHECK(number == loader.size());
}
