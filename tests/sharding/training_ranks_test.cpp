// SPDX-License-Identifier: Apache-2.0
// Runs on real processes; the launcher selects the backend.
#include "tests/testing.hpp"
//
#include "accelerate/accelerate.hpp"
#include "tests/world.hpp"

namespace {

void with_sharded_ranks(const accelerate::AcceleratorOptions& options,
                        const std::function<void(accelerate::Accelerator&)>& check) {
  if (testing::world().size() % options.fsdp_plugin.dp_shard_size.value_or(1) != 0) return;
  accelerate::Accelerator accelerator(testing::world(), options);
  check(accelerator);
}

}  // namespace

#include "tests/sharding/training_cases.hpp"
