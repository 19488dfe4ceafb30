// SPDX-License-Identifier: Apache-2.0
// Ranks as threads.
#include "tests/testing.hpp"
//
#include <functional>

#include "accelerate/comm/group.hpp"

namespace {

void with_mesh_ranks(const std::function<void(const accelerate::comm::Group&)>& check) {
  for (const int64_t ranks : {1, 2, 4, 8}) {
    accelerate::comm::run_threads(ranks, [&](const accelerate::comm::Group& group) { check(group); });
  }
}

}  // namespace

#include "tests/pipeline/prepared_cases.hpp"
