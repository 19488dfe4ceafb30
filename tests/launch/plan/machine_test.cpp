// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/machine.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using accelerate::launch::count_gpus;
using accelerate::launch::this_machine;

TEST_CASE("GPUs are the numbered devices") {
  CHECK(count_gpus({}, {}) == 0);
  CHECK(count_gpus({"nvidiactl", "nvidia-uvm", "nvidia-modeset", "null", "nvidia"}, {}) == 0);
  CHECK(count_gpus({"nvidia0", "nvidia1", "nvidia10", "nvidiactl"}, {}) == 3);
}

TEST_CASE("CUDA_VISIBLE_DEVICES limits the GPUs as in CUDA") {
  const std::vector<std::string> four{"nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl"};
  CHECK(count_gpus(four, "0") == 1);
  CHECK(count_gpus(four, "3,1") == 2);
  CHECK(count_gpus(four, " 0 , 2 ") == 2);
  CHECK(count_gpus(four, "") == 0);
  CHECK(count_gpus(four, "-1") == 0);
  CHECK(count_gpus(four, "0,-1,1") == 1);  // the list ends at the first entry that names no device
  CHECK(count_gpus(four, "1,9,2") == 1);
  CHECK(count_gpus(four, "NoDevFiles") == 0);
  CHECK(count_gpus(four, "GPU-1d9a,GPU-77ab") == 2);
  CHECK(count_gpus(four, "MIG-1d9a") == 1);
  CHECK(count_gpus({}, "0,1") == 0);  // named but not present
}

TEST_CASE("this machine has a processor, and CUDA_VISIBLE_DEVICES hides its GPUs") {
  const auto machine = this_machine({});
  CHECK(machine.usable_cpus >= 1);
  CHECK(this_machine({{"CUDA_VISIBLE_DEVICES", ""}}).gpus == 0);
}
