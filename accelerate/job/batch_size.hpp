// SPDX-License-Identifier: Apache-2.0
// Searches for the largest batch size that fits into memory.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>

#include "accelerate/comm/group.hpp"

namespace accelerate::job {

/// True for out-of-memory errors of the accelerator's allocator, of cuBLAS and cuDNN without workspace, of the CPU
/// allocator, and for std::bad_alloc.
bool is_out_of_memory(const std::exception& error);

/// Calls run(batch_size) and reduces the size by one tenth (rounded down) until no rank runs out of memory. If `run`
/// calls collectives, all ranks must run out of memory together; otherwise a rank that returns alone waits until the
/// timeout for the ranks inside the collective. Other exceptions are rethrown.
///
/// \returns the size that fitted, equal on all ranks.
/// \throws Error (usage) for a starting size below 1; Error (device) if the size reaches 0.
int64_t find_executable_batch_size(const comm::Group& group, const std::function<void(int64_t)>& run,
                                   int64_t starting_batch_size);

}  // namespace accelerate::job
