// SPDX-License-Identifier: Apache-2.0
// Private: the memory of the engine's gradients and what every parameter's gradient is at the moment.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/gradient/bucket_plan.hpp"
#include "accelerate/gradient/bucket_reducer.hpp"
#include "accelerate/gradient/imprint.hpp"

namespace accelerate::gradient {

/// One parameter.
struct ParameterState {
  std::string name{};
  at::Tensor parameter{};
  /// Gradient of a dense parameter in the memory of its bucket. Undefined for sparse parameters and before the buckets
  /// are laid out. The view has a storage of its own, so that the storage's reference count shows whether user code
  /// holds this gradient or an alias of it.
  at::Tensor view{};
  int64_t bucket = -1;
  /// Axes of a sparse gradient's indices; 0 is dense.
  int64_t sparse_dim = 0;
  /// The view is known to be zero.
  bool blank = false;
  /// Its gradient arrived in the backward under way.
  bool arrived = false;
  /// This rank put a gradient into the reduction under way.
  bool contributes = false;
  /// It has gradients that no reduction has seen.
  bool local = false;
  /// Stamp of the parameter after a window's micro-batch left a local gradient; a later change means a local step.
  std::optional<Imprint> imprint{};
  /// Without a view: the gradient that is equal on all ranks, from a reduction or zeroing. Weak, so that it uses no
  /// memory once it is dropped.
  std::optional<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> kept{};
  /// Number of ranks that contributed to the last reduction, if this rank had to read it. With static_graph: to the
  /// first.
  int64_t uses = 0;

  [[nodiscard]] at::Tensor& gradient() const { return parameter.mutable_grad(); }
  /// There is a gradient. Zeroing drops it, so autograd's next one is a tensor outside the bucket.
  [[nodiscard]] bool used() const { return gradient().defined(); }
  /// True if the gradient is in the bucket, as the view or (detached by user code) under another handle.
  [[nodiscard]] bool inside() const;
  /// True if there is no gradient, or it is where a reduction or zeroing left it. Otherwise it was created locally by
  /// backward or assigned.
  [[nodiscard]] bool in_place() const;
  /// What the gradient is now counts as the same on all ranks.
  void mark_synchronized();
  /// The gradient becomes the view, with the values it has, those from outside times factor (a number, or undefined for
  /// 1). A sparse one is densified.
  void attach(const at::Tensor& factor = {});
  /// Its view becomes zero unless it is known to be; the gradient is left as it is.
  void blank_out();
  /// Whether somebody besides the parameter and the engine holds the view or an alias of it: a kept gradient, a graph.
  [[nodiscard]] bool held() const;
  /// To be called before the bucket's memory is overwritten. If the gradient was dropped or replaced while user code
  /// holds it, the held tensor moves with its values to memory of its own, and the engine gets a new view. Without a
  /// holder nothing is allocated.
  void release_view();
  /// To be called when the bucket is written as a whole: a graph that saved this gradient finds it changed.
  void count_write() const;
  /// Leaves its bucket; the gradient follows the parameter to another dtype or device.
  void leave_bucket();
};

/// One flat tensor and the states of the parameters in it.
struct FlatBucket : GradientBucket {
  std::vector<at::Tensor> gaps{};  ///< between and behind the members
  int64_t pending = 0;             ///< number of members whose gradient has not arrived
  bool handed_out = false;         ///< user code received the whole bucket and may have written to the gaps
};

/// A factor for ParameterState::attach(). Like a literal it does not promote the dtype of its operand.
at::Tensor number(double value);

/// "Float cpu": tensors that may share a bucket.
std::string bucket_key(const at::Tensor& tensor);

/// Makes zeroed buckets for the dense states by plan and gives each state its view, unattached. The last bucket gets
/// n_counts more elements. Without a dense state there is one bucket that holds only the counts. The gradients of each
/// can be cut into as many equal, aligned parts as there are ranks.
std::vector<FlatBucket> lay_out(std::vector<ParameterState>& states, const BucketPlan& plan, int64_t n_counts,
                                int64_t ranks);

}  // namespace accelerate::gradient
