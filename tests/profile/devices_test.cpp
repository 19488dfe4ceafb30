// SPDX-License-Identifier: Apache-2.0
#include "accelerate/profile/devices.hpp"

#include <cstdlib>

#include "tests/build_folder.hpp"
#include "tests/testing.hpp"

using namespace accelerate::profile;

namespace {
const std::string fake = testing::build_folder() + "/fake_nvml/libfake_nvml.so";
}  // namespace

TEST_CASE("NVML lists the GPUs with the properties that it supports") {
  const auto all = devices_by_nvml(fake);
  REQUIRE(all.has_value());
  REQUIRE(all->size() == 2);
  CHECK(all->at(0).name == "NVIDIA Fake 0");
  CHECK(all->at(0).uuid == "GPU-0");
  CHECK(all->at(0).total_bytes == int64_t{80} << 30);
  CHECK(all->at(0).used_bytes == int64_t{20} << 30);
  CHECK(all->at(0).utilization == 97);
  CHECK_FALSE(all->at(0).temperature.has_value());  // the fake library lacks this function
  CHECK(all->at(1).index == 1);
  CHECK(all->at(1).total_bytes == 0);
  CHECK_FALSE(all->at(1).utilization.has_value());
  CHECK(device_table(*all) ==
        "GPU  name                                             memory    use   temp\n"
        "  0  NVIDIA Fake 0                           20 GiB / 80 GiB    97%      -\n"
        "  1  NVIDIA Fake 1                         0 bytes / 0 bytes      -      -\n");
}

TEST_CASE("LibTorch lists the devices if the library is missing or the driver fails") {
  CHECK_FALSE(devices_by_nvml("libno_such_library.so.1").has_value());
  CHECK_FALSE(devices_by_nvml("libc.so.6").has_value());  // another library
  setenv("FAKE_NVML_FAILS", "1", 1);
  CHECK_FALSE(devices_by_nvml(fake).has_value());
  unsetenv("FAKE_NVML_FAILS");
  const auto all = devices();
  const auto type = at::accelerator::getAccelerator(false);
  if (!type) CHECK(all.empty());
  CHECK(device_table({}) == "no GPU\n");
}
