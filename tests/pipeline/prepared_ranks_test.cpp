// SPDX-License-Identifier: Apache-2.0
// Runs on real processes; the launcher selects the backend.
#include "tests/testing.hpp"
//
#include <functional>

#include "tests/world.hpp"

namespace {

/// Not over nccl: the layers of a pipeline move to the device of its group, and these tests compare CPU tensors.
/// tests/gpu/parallel_ranks.cpp trains pipelines on GPUs.
void with_mesh_ranks(const std::function<void(const accelerate::comm::Group&)>& check) {
  if (!testing::world().device()) check(testing::world());
}

}  // namespace

#include "tests/pipeline/prepared_cases.hpp"
