// SPDX-License-Identifier: Apache-2.0
#include "launch/run/job_id.hpp"

#include <fmt/format.h>

#include <random>

namespace accelerate::launch {

std::string random_job_id() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

}  // namespace accelerate::launch
