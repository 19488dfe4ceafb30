// SPDX-License-Identifier: Apache-2.0
// Private: memory of the reducer's gradients, and the state of every parameter's gradient.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/device/factor.hpp"
#include "accelerate/gradient/bucket_plan.hpp"
#include "accelerate/gradient/bucket_reducer.hpp"
#include "accelerate/gradient/write_stamp.hpp"

namespace accelerate::gradient {

/// State of one parameter.
struct ParameterState {
  std::string name{};
  at::Tensor parameter{};
  /// Gradient of a dense parameter in the memory of its bucket. Undefined for sparse parameters and before the buckets
  /// are laid out. The view has a storage of its own, so that the storage's reference count shows whether user code
  /// holds this gradient or an alias of it.
  at::Tensor view{};
  int64_t bucket = -1;
  /// Number of axes of a sparse gradient's indices; 0 for dense gradients.
  int64_t sparse_dim = 0;
  /// True if the view is known to be zero.
  bool view_is_zero = false;
  /// True if the gradient arrived in the current backward.
  bool arrived = false;
  /// True if this rank contributes a gradient to the current reduction.
  bool contributes = false;
  /// True if the gradient contains unreduced values.
  bool local = false;
  /// Armed when a micro-batch of a window created a local gradient. A later write to the parameter is a local step.
  WriteWatch writes{};
  /// Without a view: the gradient that is equal on all ranks, from a reduction or zeroing. Weak, so that it uses no
  /// memory once it is dropped.
  std::optional<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> kept{};
  /// Number of ranks that contributed to the last reduction, if this rank had to read it. With static_graph, to the
  /// first reduction.
  int64_t uses = 0;

  [[nodiscard]] at::Tensor& gradient() const { return parameter.mutable_grad(); }
  /// True if there is a gradient. Zeroing drops it, so autograd's next gradient is a tensor outside the bucket.
  [[nodiscard]] bool used() const { return gradient().defined(); }
  /// True if the gradient is in the bucket, as the view or (detached by user code) under another handle.
  [[nodiscard]] bool inside() const;
  /// True if there is no gradient, or it is where a reduction or zeroing placed it. Otherwise backward created it
  /// locally, or user code assigned it.
  [[nodiscard]] bool in_place() const;
  /// Marks the current gradient as equal on all ranks.
  void mark_synchronized();
  /// Makes the view the gradient, with the current values. Values from outside the bucket are multiplied by factor,
  /// if there is one. A sparse gradient is densified.
  void attach(const device::Factor* factor = nullptr);
  /// Zeroes the view unless it is known to be zero; the gradient is unchanged.
  void zero_view();
  /// True if other code (a kept gradient, a graph) holds the view or an alias of it.
  [[nodiscard]] bool held() const;
  /// Call before the bucket's memory is overwritten. If the gradient was dropped or replaced while user code holds it,
  /// the held tensor moves with its values to its own memory, and the reducer gets a new view. If no other code holds
  /// it, nothing is allocated.
  void release_view();
  /// Call when the bucket is written as a whole, so that a graph that saved this gradient detects the change.
  void count_write() const;
  /// Removes the state from its bucket; the gradient follows the parameter to another dtype or device.
  void detach_from_bucket();
};

/// One flat tensor and the states of the parameters in it.
struct FlatBucket : GradientBucket {
  std::vector<at::Tensor> gaps{};  ///< memory between and after the members
  int64_t pending = 0;             ///< number of members without a gradient in this reduction so far
  bool exposed_to_hook = false;    ///< user code received the whole bucket and may have written to the gaps
};

/// Returns "Float cpu". Tensors with equal keys may share a bucket.
std::string bucket_key(const at::Tensor& tensor);

/// Creates zeroed buckets for the dense states by plan and gives each state its view, unattached. The last bucket gets
/// n_counts more elements. Without a dense state there is one bucket with only the counts. The gradients of each bucket
/// can be cut into equal, aligned parts, one per rank.
std::vector<FlatBucket> lay_out(std::vector<ParameterState>& states, const BucketPlan& plan, int64_t n_counts,
                                int64_t ranks);

}  // namespace accelerate::gradient
