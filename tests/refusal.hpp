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

/// The same without the prefix "[rank ...] ".
template <typename Thrown = accelerate::Error>
std::string refusal_of_any_rank(const auto& call) {
  const std::string text = refusal<Thrown>(call);
  const auto end = text.find("] ");
  return end == std::string::npos || text[0] != '[' ? text : text.substr(end + 2);
}

}  // namespace testing
