// SPDX-License-Identifier: Apache-2.0
// Compiled modules on ranks that are processes: each loads the package for itself.
#include "tests/nn/compiled_training.hpp"
#include "tests/world.hpp"

using namespace compiled_testing;

TEST_CASE("ranks train a compiled module like one rank that accumulates all parts of the batch") {
  accelerate::Accelerator accelerator(testing::world(), {.cpu = true});
  const Values values = train_on_ranks(accelerator, compiled_mlp());
  CHECK(largest_difference(values, train_by_hand(accelerator.num_processes())) < 1e-12);
  CHECK(largest_difference(values, values_of(*compiled_mlp())) > 1e-2);
}
