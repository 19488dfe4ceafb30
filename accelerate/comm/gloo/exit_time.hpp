// SPDX-License-Identifier: Apache-2.0
// Private: time that the destructors of the gloo backend wait.
#pragma once

#include <chrono>
#include <exception>

namespace accelerate::comm {

/// Time for the pending operations of a group that is destroyed: short if an exception destroys it, because the other
/// ranks may never join them.
inline std::chrono::milliseconds exit_time(std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kUnwindTime{500};
  return std::uncaught_exceptions() > 0 ? kUnwindTime : timeout;
}

}  // namespace accelerate::comm
