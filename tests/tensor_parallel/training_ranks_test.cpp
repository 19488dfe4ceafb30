// SPDX-License-Identifier: Apache-2.0
// Runs on real processes; the launcher selects the backend. Sizes of the models are divisible by 1, 2 and 4.
#include "tests/testing.hpp"
//
#include <functional>

#include "tests/world.hpp"

namespace {

void with_tensor_parallel_ranks(const std::function<void(const accelerate::comm::Group&)>& check) {
  check(testing::world().duplicate());
}

}  // namespace

#include "tests/tensor_parallel/training_cases.hpp"
