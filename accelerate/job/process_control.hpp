// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "accelerate/comm/group.hpp"

namespace accelerate::job {

/// One rank runs the function before the others do. An exception passes through after the barrier, so that a failure on
/// one rank does not leave the others waiting.
template <typename Function>
void first(const comm::Group& group, bool is_first, Function&& function) {
  if (!is_first) {
    group.barrier();
    function();
    return;
  }
  try {
    function();
  } catch (...) {
    group.barrier();
    throw;
  }
  group.barrier();
}

}  // namespace accelerate::job
