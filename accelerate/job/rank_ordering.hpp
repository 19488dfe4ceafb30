// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "accelerate/comm/group.hpp"

namespace accelerate::job {

/// Barrier over all ranks; `call` is the name of the user's call for messages.
void barrier_for_call(const comm::Group& group, std::string_view call);

/// One rank runs the function before the others. An exception is rethrown after the barrier, so that a failure on one
/// rank does not block the others.
///
/// \param call  Name of the user's call for messages.
template <typename Function>
void run_rank_first(const comm::Group& group, std::string_view call, bool is_first, Function&& function) {
  if (!is_first) {
    barrier_for_call(group, call);
    function();
    return;
  }
  try {
    function();
  } catch (...) {
    barrier_for_call(group, call);
    throw;
  }
  barrier_for_call(group, call);
}

}  // namespace accelerate::job
