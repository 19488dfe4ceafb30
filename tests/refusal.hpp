// SPDX-License-Identifier: Apache-2.0
// What a call is refused with.
#pragma once

#include <string>

#include "accelerate/base/error.hpp"

namespace testing {

/// What the Error says that it throws, "" where it throws none; any other exception goes on, unless Thrown is its type.
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
