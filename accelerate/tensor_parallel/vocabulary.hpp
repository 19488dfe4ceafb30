// SPDX-License-Identifier: Apache-2.0
// Private: indices of a vocabulary of which each rank has a part.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/logical_or.h>

#include <cstdint>
#include <string_view>

#include "accelerate/base/error.hpp"
#include "accelerate/comm/group.hpp"

namespace accelerate::nn {

/// Indices within this rank's part. Other indices are 0 and marked.
struct PartIndices {
  at::Tensor index;    ///< from 0 to the size of the part - 1
  at::Tensor outside;  ///< bool: belongs to another rank
};

inline PartIndices in_part(const at::Tensor& indices, int64_t part, const comm::Group& group) {
  const at::Tensor shifted = indices - group.rank() * part;
  const at::Tensor outside = at::logical_or(shifted < 0, shifted >= part);
  return {shifted.masked_fill(outside, 0), outside};
}

/// Only on the CPU: elsewhere reading the result would block the host.
///
/// \param ignored  Bool, marks indices that may have any value; or undefined.
/// \throws Error (usage) with the first index outside of the vocabulary.
inline void check_indices(std::string_view call, const at::Tensor& indices, const at::Tensor& ignored,
                          int64_t vocabulary, const comm::Group& group) {
  if (!indices.is_cpu() || indices.numel() == 0) return;
  at::Tensor wrong = at::logical_or(indices < 0, indices >= vocabulary);
  if (ignored.defined()) wrong = wrong.logical_and(ignored.logical_not());
  if (!wrong.any().item<bool>()) return;
  base::fail(ErrorKind::usage, group.place(), call, "an index is {}, must be from 0 to {}",
             indices.masked_select(wrong)[0].item<int64_t>(), vocabulary - 1);
}

}  // namespace accelerate::nn
