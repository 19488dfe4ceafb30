// SPDX-License-Identifier: Apache-2.0
#include "accelerate/sharding/unit_buffers.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace accelerate::sharding {
namespace {

// The system clears a huge page ten times as fast as 512 small ones, and each step clears the buffers again.
constexpr size_t kHugePage = size_t{2} << 20;

// Maps address space that begins at a huge page. Returns null if there is none.
void* map_huge_pages(size_t bytes) noexcept {
  void* const mapped = mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(mapped);
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(mapped) % kHugePage) % kHugePage;
  if (before > 0) munmap(begin, before);
  munmap(begin + before + bytes, kHugePage - before);
  madvise(begin + before, bytes, MADV_HUGEPAGE);  // fails without huge pages, which is no error
  return begin + before;
}

}  // namespace

struct UnitBuffers::State {
  explicit State(int64_t bytes) : capacity((static_cast<size_t>(bytes) + kHugePage - 1) / kHugePage * kHugePage) {
    unused.reserve(kKept);
  }
  /// Returns null if the system has no memory.
  [[nodiscard]] void* take();
  void give_back(void* memory) noexcept;
  void unmap_unused() noexcept;

  const size_t capacity;  // a multiple of a huge page
  std::mutex mutex;       // protects the members below
  Counts counts{};
  bool is_closed = false;

 private:
  void unmap(void* memory) noexcept;
  std::vector<void*> unused{};  // the least recently used first
};

void* UnitBuffers::State::take() {
  const std::lock_guard lock(mutex);
  void* memory = nullptr;
  if (unused.empty()) {
    memory = map_huge_pages(capacity);
    if (memory == nullptr) return nullptr;
    ++counts.mapped;
  } else {  // the one used last, which may be in the caches
    memory = unused.back();
    unused.pop_back();
    ++counts.reuses;
  }
  counts.most_used = std::max(counts.most_used, ++counts.used);
  return memory;
}

void UnitBuffers::State::give_back(void* memory) noexcept {
  const std::lock_guard lock(mutex);
  --counts.used;
  is_closed || counts.mapped > kKept ? unmap(memory) : unused.push_back(memory);
}

void UnitBuffers::State::unmap_unused() noexcept {
  const std::lock_guard lock(mutex);
  for (void* const memory : unused) unmap(memory);
  unused.clear();
}

void UnitBuffers::State::unmap(void* memory) noexcept {
  munmap(memory, capacity);
  --counts.mapped;
}

UnitBuffers::UnitBuffers(int64_t capacity_bytes) : state_(std::make_shared<State>(capacity_bytes)) {}

UnitBuffers::~UnitBuffers() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_closed = true;
  }
  unmap_unused();
}

at::Tensor UnitBuffers::take(int64_t numel, const c10::TensorOptions& options) {
  const int64_t bytes = numel * static_cast<int64_t>(options.dtype().itemsize());
  const bool fits = bytes >= kMinBytes && bytes <= static_cast<int64_t>(state_->capacity);
  void* const memory = options.device().is_cpu() && fits ? state_->take() : nullptr;
  if (memory == nullptr) return at::empty({numel}, options);  // throws if there is no memory
  return at::from_blob(
      memory, {numel}, [state = state_](void* unused) { state->give_back(unused); }, options);
}

void UnitBuffers::unmap_unused() noexcept { state_->unmap_unused(); }

UnitBuffers::Counts UnitBuffers::counts() const {
  const std::lock_guard lock(state_->mutex);
  return state_->counts;
}

}  // namespace accelerate::sharding
