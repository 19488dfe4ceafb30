// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of this process. Contract: run_threads in comm/group.hpp. Private.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "accelerate/comm/core/group_core.hpp"

namespace accelerate::comm {

void run_ranks(int64_t world_size, const std::function<void(GroupPtr)>& rank_main, std::chrono::milliseconds timeout);

}  // namespace accelerate::comm
