// SPDX-License-Identifier: Apache-2.0
// A user-defined function as communication hook.
#pragma once

#include <functional>

#include "accelerate/gradient/bucket_reducer.hpp"

namespace accelerate::gradient {

/// \param bucket  State before the reduction; its gradients may be modified.
/// \param group   For the function's own collectives.
/// \returns [n] with the shape, dtype and device of bucket.gradients: the sums over the ranks.
using ReduceFunction = std::function<at::Tensor(const GradientBucket& bucket, const comm::Group& group)>;

/// Calls the function once per bucket and backward as soon as the bucket is full; backward waits for it. For a hook
/// that overlaps with backward, derive from BucketReducer. If the result has another shape, dtype or device, backward
/// throws Error (usage).
[[nodiscard]] CommHook comm_hook(ReduceFunction reduce);

}  // namespace accelerate::gradient
