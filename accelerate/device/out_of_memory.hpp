// SPDX-License-Identifier: Apache-2.0
// Memory that runs out on a device, as an error of ours.
#pragma once

#include <c10/util/Exception.h>

#include <string_view>

#include "accelerate/base/error.hpp"

namespace accelerate::device {

/// Error (device): who, doing what, what the allocator said, and what to do.
[[noreturn]] void fail_out_of_memory(const c10::OutOfMemoryError& error, const Place& place,
                                     std::string_view operation);

/// What call returns. Throws that Error where the device's allocator throws; costs nothing where it does not.
template <typename Call>
decltype(auto) naming_out_of_memory(const Place& place, std::string_view operation, const Call& call) {
  try {
    return call();
  } catch (const c10::OutOfMemoryError& error) {
    fail_out_of_memory(error, place, operation);
  }
}

}  // namespace accelerate::device
