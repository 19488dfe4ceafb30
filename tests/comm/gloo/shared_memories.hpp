// SPDX-License-Identifier: Apache-2.0
// Ranks on one machine as threads, with shared memory as processes have it.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "accelerate/comm/core/connection.hpp"
#include "accelerate/comm/gloo/shared_memory.hpp"
#include "tests/testing.hpp"

namespace shared_memory_testing {

using accelerate::comm::SharedMemory;

/// Calls `run` once for each rank, each with its own thread and object.
inline void with_shared_memories(int64_t ranks,
                                 const std::function<void(std::shared_ptr<SharedMemory>, int64_t)>& run) {
  std::vector<std::shared_ptr<SharedMemory>> memories{SharedMemory::create(ranks)};
  REQUIRE(memories[0]);
  const auto address = memories[0]->address();
  for (int64_t rank = 1; rank < ranks; ++rank) memories.push_back(SharedMemory::open(address, rank, ranks));
  for (const auto& memory : memories) REQUIRE(memory);
  std::vector<std::jthread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&run, rank, memory = std::move(memories[static_cast<size_t>(rank)])]() mutable {
      run(std::move(memory), rank);
    });
  }
}

/// Message of the exception, or "" if there is none.
inline std::string failure_of(const std::function<void()>& call) {
  try {
    call();
    return "";
  } catch (const accelerate::comm::FingerprintMismatch&) {
    return "mismatch";
  } catch (const accelerate::comm::DeadlineExceeded&) {
    return "deadline";
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace shared_memory_testing
