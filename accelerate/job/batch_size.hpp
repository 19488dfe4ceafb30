// SPDX-License-Identifier: Apache-2.0
// The largest batch that fits into memory, found by trying.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>

#include "accelerate/comm/group.hpp"

namespace accelerate::job {

/// Whether an error says that memory ran out: the accelerator's allocator, cuBLAS and cuDNN without workspace, the
/// CPU's allocator, and the host's own (std::bad_alloc).
bool is_out_of_memory(const std::exception& error);

/// Calls run(batch_size) with a tenth less each time (rounded down) until it does not run out of memory on any rank.
/// Where run is collective it must run out on all ranks alike: one that comes back alone waits for those that wait for
/// it in there, until the timeout.
///
/// returns   the size that fitted, the same on all ranks
/// Other exceptions pass through. Throws Error: usage for a start below 1, device when size 0 is reached.
int64_t find_executable_batch_size(const comm::Group& group, const std::function<void(int64_t)>& run,
                                   int64_t starting_batch_size);

}  // namespace accelerate::job
