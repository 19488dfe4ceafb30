// SPDX-License-Identifier: Apache-2.0
#include "accelerate/sharding/unit_buffers.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace accelerate::sharding {
namespace {

// The system clears a huge page ten times as fast as 512 small ones, and each step clears the buffers again.
constexpr size_t kHugePage = size_t{2} << 20;

size_t in_huge_pages(size_t bytes) { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }

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
  struct Buffer {
    void* memory = nullptr;
    size_t touched = 0;  // bytes from its beginning that may have pages, a multiple of a huge page
  };

  explicit State(int64_t bytes) : capacity(in_huge_pages(static_cast<size_t>(bytes))) { unused.reserve(kKept); }
  /// Returns a buffer without memory if the system has none.
  [[nodiscard]] Buffer take(size_t bytes);
  void give_back(Buffer buffer) noexcept;
  void unmap_unused() noexcept;

  const size_t capacity;  // a multiple of a huge page
  std::mutex mutex;       // protects the members below
  Counts counts{};
  bool is_closed = false;

 private:
  static void return_excess_pages(Buffer& buffer, size_t bytes) noexcept;
  void unmap(void* memory) noexcept;
  std::vector<Buffer> unused{};  // the least recently used first
};

// A large unit's pages behind the first `bytes` return to the system. Up to twice the need is kept, so that units of
// about the same size do not clear pages in turn.
void UnitBuffers::State::return_excess_pages(Buffer& buffer, size_t bytes) noexcept {
  const size_t needed = in_huge_pages(bytes);
  if (buffer.touched <= 2 * needed) return;
  if (madvise(static_cast<std::byte*>(buffer.memory) + needed, buffer.touched - needed, MADV_DONTNEED) != 0) return;
  buffer.touched = needed;
}

UnitBuffers::State::Buffer UnitBuffers::State::take(size_t bytes) {
  const std::lock_guard lock(mutex);
  Buffer buffer;
  if (unused.empty()) {
    buffer.memory = map_huge_pages(capacity);
    if (buffer.memory == nullptr) return buffer;
    ++counts.mapped;
  } else {  // the one used last, which may be in the caches
    buffer = unused.back();
    unused.pop_back();
    ++counts.reuses;
    return_excess_pages(buffer, bytes);
  }
  buffer.touched = std::max(buffer.touched, in_huge_pages(bytes));
  counts.most_used = std::max(counts.most_used, ++counts.used);
  return buffer;
}

void UnitBuffers::State::give_back(Buffer buffer) noexcept {
  const std::lock_guard lock(mutex);
  --counts.used;
  is_closed || counts.mapped > kKept ? unmap(buffer.memory) : unused.push_back(buffer);
}

void UnitBuffers::State::unmap_unused() noexcept {
  const std::lock_guard lock(mutex);
  for (const Buffer& buffer : unused) unmap(buffer.memory);
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
  const State::Buffer buffer =
      options.device().is_cpu() && fits ? state_->take(static_cast<size_t>(bytes)) : State::Buffer();
  if (buffer.memory == nullptr) return at::empty({numel}, options);  // throws if there is no memory
  // An owner, so that the buffer is given back if from_blob() throws.
  std::shared_ptr<void> owner(buffer.memory, [state = state_, buffer](void*) { state->give_back(buffer); });
  return at::from_blob(
      buffer.memory, {numel}, [owner = std::move(owner)](void*) {}, options);
}

void UnitBuffers::unmap_unused() noexcept { state_->unmap_unused(); }

UnitBuffers::Counts UnitBuffers::counts() const {
  const std::lock_guard lock(state_->mutex);
  return state_->counts;
}

}  // namespace accelerate::sharding
