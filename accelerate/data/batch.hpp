// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace accelerate::data {

/// What a loop over a loader sees: for (auto& [images, labels] : loader).
struct Batch {
  at::Tensor data;    ///< [B, ...]
  at::Tensor target;  ///< [B, ...]; undefined where the source has none
};

/// Lets accelerate::tree walk a Batch.
inline auto tree_members(Batch& batch) { return std::tie(batch.data, batch.target); }

}  // namespace accelerate::data
