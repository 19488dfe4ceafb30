// SPDX-License-Identifier: Apache-2.0
// Runs on real processes; the launcher selects the backend.
#include "tests/testing.hpp"
//
#include <functional>

#include "tests/world.hpp"

namespace {

void with_attention_ranks(const std::function<void(const accelerate::comm::Group&)>& check) {
  check(testing::world().duplicate());
}

}  // namespace

#include "tests/context_parallel/attention_cases.hpp"
