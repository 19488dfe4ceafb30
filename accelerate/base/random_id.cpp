// SPDX-License-Identifier: Apache-2.0
#include "accelerate/base/random_id.hpp"

#include <fmt/format.h>

#include <random>

namespace accelerate::base {

std::string random_id() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

}  // namespace accelerate::base
