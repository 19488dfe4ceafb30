// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace accelerate::device {

/// Where a tensor's values go, and where they come from: of one shape.
struct CopyPair {
  at::Tensor to, from;
};

/// to.copy_(from) for each, without gradients. Large ones on the CPU of one dtype and row-major are cut and copied by
/// all processors: one processor moves half of what memory can, and pages of a mapped file are brought by whoever
/// touches them.
void copy_all(const std::vector<CopyPair>& pairs);

}  // namespace accelerate::device
