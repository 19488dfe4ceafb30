// SPDX-License-Identifier: Apache-2.0
// Memory that runs out on a device, as an error of ours.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/base/error.hpp"

namespace accelerate::device {

/// What is known to lie in the memory that ran out.
struct KnownTensor {
  std::string text{};  ///< "fc1.weight [128, 9216] float32"
  int64_t bytes = 0;
};
using KnownTensors = std::function<std::vector<KnownTensor>()>;

/// Error (device): who, doing what, what the allocator said, the largest tensors known, and what to do.
[[noreturn]] void fail_out_of_memory(const c10::OutOfMemoryError& error, const Place& place, std::string_view operation,
                                     const std::vector<KnownTensor>& known = {});

/// What call returns. known: asked when memory ran out. Throws that Error where the device's allocator throws; costs
/// nothing where it does not.
template <typename Call>
decltype(auto) naming_out_of_memory(const Place& place, std::string_view operation, const Call& call,
                                    const KnownTensors& known = {}) {
  try {
    return call();
  } catch (const c10::OutOfMemoryError& error) {
    fail_out_of_memory(error, place, operation, known ? known() : std::vector<KnownTensor>());
  }
}

}  // namespace accelerate::device
