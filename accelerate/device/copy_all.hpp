// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace accelerate::device {

/// Destination and source of a copy, with equal shapes.
struct CopyPair {
  at::Tensor to, from;
};

/// Performs to.copy_(from) for each pair, without gradients. Large row-major CPU pairs with equal dtypes are split and
/// copied by all processors, past their caches: a single processor reaches half of the memory bandwidth, and pages of a
/// mapped file are loaded by the thread that touches them.
void copy_all(const std::vector<CopyPair>& pairs);

}  // namespace accelerate::device
