// SPDX-License-Identifier: Apache-2.0
// Runs on real processes; the launcher selects the backend.
#include "tests/testing.hpp"
//
#include <functional>

#include "tests/world.hpp"

namespace {

void with_mesh_ranks(const std::function<void(const accelerate::comm::Group&)>& check) {
  testing::with_cpu_ranks(check);
}

}  // namespace

#include "tests/pipeline/prepared_cases.hpp"
