// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/batch_record.hpp"

#include <algorithm>
#include <utility>

namespace accelerate::prepared {
namespace {

bool has_memory(const at::Tensor& tensor) { return tensor.defined() && tensor.has_storage() && tensor.numel() > 0; }

// Returns the byte offsets of the first element and behind the last one. LibTorch has no negative strides.
std::pair<int64_t, int64_t> extent_of(const at::Tensor& tensor) {
  int64_t last = tensor.storage_offset();
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
  const auto bytes = static_cast<int64_t>(tensor.element_size());
  return {tensor.storage_offset() * bytes, (last + 1) * bytes};
}

}  // namespace

BatchRecord::BatchRecord(const std::vector<at::Tensor>& tensors, const state::BatchInfo& info) : info_(info) {
  for (const at::Tensor& tensor : tensors) {
    if (!has_memory(tensor)) continue;
    const auto [first, end] = extent_of(tensor);
    extents_.push_back({tensor.storage().getWeakStorageImpl(), first, end});
  }
}

bool BatchRecord::shares_memory(const at::Tensor& tensor) const {
  if (extents_.empty() || !has_memory(tensor)) return false;
  const auto [first, end] = extent_of(tensor);
  return std::any_of(extents_.begin(), extents_.end(), [&, first = first, end = end](const Extent& extent) {
    // The address of a storage is not reused while a weak pointer to it exists.
    return extent.storage._unsafe_get_target() == tensor.storage().unsafeGetStorageImpl() && first < extent.end &&
           extent.first < end;
  });
}

}  // namespace accelerate::prepared
