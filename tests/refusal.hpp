// SPDX-License-Identifier: Apache-2.0
// Error text of a refused call.
#pragma once

#include <string>

#include "accelerate/base/error.hpp"

namespace testing {

/// Text of the Error that the call throws, or "". Other exceptions are rethrown unless Thrown is their type.
template <typename Thrown = accelerate::Error>
std::string refusal(const auto& call) {
  try {
    call();
  } catch (const Thrown& error) {
    return error.what();
  }
  return "";
}

}  // namespace testing
