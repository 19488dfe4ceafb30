// SPDX-License-Identifier: Apache-2.0
// An Error's fields as a value.
#pragma once

#include <string>
#include <utility>

#include "accelerate/base/error.hpp"

namespace testing {

template <typename Function>
std::pair<accelerate::ErrorKind, std::string> refusal(Function&& function) {
  try {
    function();
  } catch (const accelerate::Error& error) {
    return {error.kind(), error.what()};
  }
  return {accelerate::ErrorKind::data, "no error"};
}

}  // namespace testing
