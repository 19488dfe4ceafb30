// SPDX-License-Identifier: Apache-2.0
// Averages gradients after a backward, for models with gradients that are complete only then.
#pragma once

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "accelerate/comm/group.hpp"
#include "accelerate/gradient/named_tensor.hpp"

namespace accelerate::gradient {

/// Replaces every gradient by its mean over the ranks, in flat buckets of one dtype and device. If no rank has a
/// gradient of a parameter, it stays undefined. If only some ranks have one, the other ranks count as zero, and all
/// ranks get the mean. Sparse gradients become dense. Gradients that are equal on all ranks stay equal. Collective.
///
/// \param parameters  The same on all ranks. Parameters without requires_grad are skipped; duplicates count once.
/// \param alone       Parameters by TensorImpl that are averaged one by one: ranks of other groups have copies of them
///                    and must compute the same bits.
/// \param cap_bytes   Largest bucket, in bytes. A larger gradient gets its own bucket.
void average_gradients(const comm::Group& group, const std::vector<NamedTensor>& parameters,
                       const std::unordered_set<const void*>& alone = {}, int64_t cap_bytes = 25 << 20);

}  // namespace accelerate::gradient
