// SPDX-License-Identifier: Apache-2.0
// Recognises tensors of a batch by their memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <vector>

#include "accelerate/state/batch_info.hpp"

namespace accelerate::prepared {

/// A batch that a loader returned, and its position in the pass. The record does not keep the batch alive.
class BatchRecord {
 public:
  BatchRecord() = default;
  BatchRecord(const std::vector<at::Tensor>& tensors, const state::BatchInfo& info);

  /// Whether `tensor` is a tensor of the batch or a view of one. The result of a computation shares no memory with it.
  [[nodiscard]] bool shares_memory(const at::Tensor& tensor) const;
  [[nodiscard]] const state::BatchInfo& info() const { return info_; }

 private:
  struct Extent {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    int64_t first, end;  // bytes within the storage
  };
  std::vector<Extent> extents_;
  state::BatchInfo info_{};
};

}  // namespace accelerate::prepared
