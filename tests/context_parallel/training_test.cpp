// SPDX-License-Identifier: Apache-2.0
// Ranks as threads.
#include "tests/testing.hpp"
//
#include <functional>

#include "accelerate/comm/group.hpp"

namespace {

void with_training_ranks(const std::function<void(const accelerate::comm::Group&)>& check) {
  for (const int64_t ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    accelerate::comm::run_threads(ranks, check);
  }
}

}  // namespace

#include "tests/context_parallel/training_cases.hpp"
