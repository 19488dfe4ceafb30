// SPDX-License-Identifier: Apache-2.0
// Converts out-of-memory exceptions of a device to the library's Error.
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

/// A tensor that is known to be in the exhausted memory.
struct MemoryEntry {
  std::string text{};  ///< "fc1.weight [128, 9216] float32"
  int64_t bytes = 0;
  std::string kind{};  ///< "parameters", "optimizer_1": category for totals
  /// Bytes on all ranks together, if each has a part of the tensor; otherwise 0.
  int64_t whole_bytes = 0;
};
using MemoryEntries = std::function<std::vector<MemoryEntry>()>;

/// True if the exception is a LibTorch allocator's out-of-memory error: by its type, or for the CPU by its text.
[[nodiscard]] bool is_out_of_memory_error(const std::exception& error);

/// \throws Error (device) with place, operation, the allocator's text, known memory by kind, the largest tensors and
///   the remedy.
[[noreturn]] void fail_out_of_memory(const c10::Error& error, const RankContext& place, std::string_view operation,
                                     const std::vector<MemoryEntry>& known = {});

/// Returns the result of `call`. `known` is evaluated only if memory is exhausted. No cost on success.
/// \throws Error (device) as above if an allocator of LibTorch fails, on a device or on the CPU.
template <typename Call>
decltype(auto) with_out_of_memory_report(const RankContext& place, std::string_view operation, const Call& call,
                                         const MemoryEntries& known = {}) {
  try {
    return call();
  } catch (const c10::Error& error) {
    if (!is_out_of_memory_error(error)) throw;
    fail_out_of_memory(error, place, operation, known ? known() : std::vector<MemoryEntry>());
  }
}

}  // namespace accelerate::device
