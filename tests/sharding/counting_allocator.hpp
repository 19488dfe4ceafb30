// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "tests/cpu_allocator.hpp"

namespace sharding_testing {

/// Counts the bytes that LibTorch holds on the CPU.
struct CountingAllocator final : c10::Allocator {
  static CountingAllocator& instance() {
    static CountingAllocator one;
    return one;
  }
  c10::DataPtr allocate(size_t bytes) override {
    auto block = inner->allocate(bytes);
    void* memory = block.get();
    if (memory == nullptr) return block;
    const std::lock_guard lock(mutex);
    held += static_cast<int64_t>(bytes);
    peak = std::max(peak, held);
    blocks.emplace(memory, std::pair(std::move(block), static_cast<int64_t>(bytes)));
    return {memory, memory, &release, c10::Device(c10::kCPU)};
  }
  static void release(void* memory) {
    auto& self = instance();
    c10::DataPtr freed;
    const std::lock_guard lock(self.mutex);
    const auto found = self.blocks.find(memory);
    self.held -= found->second.second;
    freed = std::move(found->second.first);
    self.blocks.erase(found);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

  c10::Allocator* inner = c10::GetCPUAllocator();
  std::mutex mutex;
  int64_t held = 0, peak = 0;
  std::unordered_map<void*, std::pair<c10::DataPtr, int64_t>> blocks;
};

/// Counts until the end of the scope.
struct CountedMemory {
  CountedMemory() { c10::SetCPUAllocator(&counts, testing::kCpuAllocatorPriority); }
  ~CountedMemory() { c10::SetCPUAllocator(counts.inner, testing::kCpuAllocatorPriority); }
  CountedMemory(const CountedMemory&) = delete;
  CountedMemory& operator=(const CountedMemory&) = delete;

  CountingAllocator& counts = CountingAllocator::instance();
};

}  // namespace sharding_testing
