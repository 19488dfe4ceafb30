// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <cstdlib>

#include "accelerate/accelerate.hpp"
#include "accelerate/device/cpu_threads.hpp"
#include "tests/world.hpp"

namespace device = accelerate::device;

TEST_CASE("ranks of one machine divide its cores without the launcher's variables") {
  unsetenv("OMP_NUM_THREADS");  // from the environment of the test run
  const auto shard_spec = device::threads_per_rank(device::physical_cores(), testing::world().size(), {});
  const int before = at::get_num_threads();
  device::set_threads(shard_spec + 3);
  {
    accelerate::Accelerator accelerator(testing::world(), {});
    CHECK(at::get_num_threads() == shard_spec);
  }
  device::set_threads(before);
}
