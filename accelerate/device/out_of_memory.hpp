// SPDX-License-Identifier: Apache-2.0
// Memory that runs out on a device, as an error of ours.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <exception>
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
  std::string kind{};  ///< "parameters", "optimizer_1": what it is added up with
};
using KnownTensors = std::function<std::vector<KnownTensor>()>;

/// Whether an allocator of LibTorch's says that memory ran out: by its type, or, the CPU's, by its text alone.
[[nodiscard]] bool says_out_of_memory(const std::exception& error);

/// Error (device): who, doing what, what the allocator said, what is known to be there by kinds, the largest tensors,
/// and what to do.
[[noreturn]] void fail_out_of_memory(const c10::Error& error, const Place& place, std::string_view operation,
                                     const std::vector<KnownTensor>& known = {});

/// What call returns. known: asked when memory ran out. Throws that Error where an allocator of LibTorch's throws, a
/// device's or the CPU's; costs nothing where it does not.
template <typename Call>
decltype(auto) naming_out_of_memory(const Place& place, std::string_view operation, const Call& call,
                                    const KnownTensors& known = {}) {
  try {
    return call();
  } catch (const c10::Error& error) {
    if (!says_out_of_memory(error)) throw;
    fail_out_of_memory(error, place, operation, known ? known() : std::vector<KnownTensor>());
  }
}

}  // namespace accelerate::device
