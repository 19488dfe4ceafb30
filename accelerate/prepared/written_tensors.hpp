// SPDX-License-Identifier: Apache-2.0
// Private: detects the parameters and buffers that a training step changes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <unordered_set>
#include <utility>
#include <vector>

namespace accelerate::prepared {

struct AcceleratorState;

/// Does not keep the tensor alive and does not raise its use_count(), by which BufferBroadcast detects graphs that hold
/// a buffer.
using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

/// Compares the version counters of all prepared models' parameters and buffers, and of all optimizers' parameters,
/// with those at construction.
class WrittenTensors {
 public:
  explicit WrittenTensors(AcceleratorState& shared);

  /// \returns  The tensors with a version that changed since construction.
  [[nodiscard]] std::vector<WeakTensor> list() const;

 private:
  void note(const at::Tensor& tensor);

  std::unordered_set<const void*> seen_;
  std::vector<std::pair<WeakTensor, int64_t>> before_;
};

/// \returns  The tensors that still exist.
[[nodiscard]] std::vector<at::Tensor> existing(const std::vector<WeakTensor>& tensors);

}  // namespace accelerate::prepared
