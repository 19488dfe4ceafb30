// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

namespace accelerate::base {

/// Calls run(i) for i from 0 to count - 1 in ascending order of start, on one thread per processor, at most 8. After a
/// failure no further calls start. After all calls have ended, the exception of the lowest i is rethrown.
template <typename Run>
void parallel_for(size_t count, const Run& run) {
  std::vector<std::exception_ptr> failures(count);
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  const auto work = [&] {
    for (size_t i = next++; i < count && !failed; i = next++) {
      try {
        run(i);
      } catch (...) {
        failures[i] = std::current_exception();
        failed = true;
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    const size_t most = std::min<size_t>({count, std::max(1U, std::thread::hardware_concurrency()), 8});
    for (size_t i = 1; i < most; ++i) threads.emplace_back(work);
    work();
  }
  for (const auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace accelerate::base
