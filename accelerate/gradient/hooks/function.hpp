// SPDX-License-Identifier: Apache-2.0
// A user's function as communication hook.
#pragma once

#include <functional>

#include "accelerate/gradient/bucket_reducer.hpp"

namespace accelerate::gradient {

/// \param bucket  State before the reduction; its gradients may be modified.
/// \param group   For the function's own collectives.
/// \returns [n] with the shape, dtype and device of bucket.gradients: the sums over the ranks.
using ReduceFunction = std::function<at::Tensor(const GradientBucket& bucket, const comm::Group& group)>;

/// The function is called once for each bucket and backward as soon as the bucket is full, and backward waits for it; a
/// hook that lets backward go on is a BucketReducer of one's own. A result of another shape, dtype or device is an
/// Error (usage), thrown by backward.
[[nodiscard]] CommHook comm_hook(ReduceFunction reduce);

}  // namespace accelerate::gradient
