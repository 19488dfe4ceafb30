// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/batch_buffer_pool.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "accelerate/data/workers.hpp"

namespace accelerate::data {
namespace {

constexpr int64_t kMaxIdle = 1000;

/// Maximum number of tracked pieces. Beyond it a piece is dropped and its memory is not reused. Batches that workers
/// have read ahead do not count.
size_t max_pieces() {
  constexpr int64_t kept = 64;
  constexpr int64_t of_batch = 8;  // tensors per batch
  return static_cast<size_t>(kept + of_batch * prefetched_batches());
}

at::Tensor tensor_over(c10::Storage storage, at::IntArrayRef sizes, at::ScalarType dtype) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

}  // namespace

c10::Storage BatchBufferPool::find(size_t bytes, bool pinned) {
  c10::Storage found;
  const auto is_stale = [&](Piece& piece) {
    if (piece.storage.use_count() > 1) return false;
    if (found || piece.pinned != pinned || piece.storage.nbytes() != bytes) return ++piece.idle > kMaxIdle;
    piece.idle = 0;
    found = piece.storage;
    return false;
  };
  std::erase_if(pieces_, is_stale);
  if (found) std::atomic_thread_fence(std::memory_order_acquire);  // synchronises with the last owner
  return found;
}

at::Tensor BatchBufferPool::take(at::IntArrayRef sizes, at::ScalarType dtype, bool pinned) {
  const auto bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * c10::elementSize(dtype);
  const std::lock_guard lock(mutex_);
  if (auto storage = find(bytes, pinned)) return tensor_over(std::move(storage), sizes, dtype);
  auto fresh = at::empty(sizes, at::TensorOptions().dtype(dtype).pinned_memory(pinned));
  if (pieces_.size() >= max_pieces()) {
    const auto free =
        std::find_if(pieces_.begin(), pieces_.end(), [](const Piece& piece) { return piece.storage.use_count() == 1; });
    pieces_.erase(free == pieces_.end() ? pieces_.begin() : free);
  }
  pieces_.push_back({fresh.storage(), pinned});
  return fresh;
}

}  // namespace accelerate::data
