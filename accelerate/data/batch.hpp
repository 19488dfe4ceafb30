// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace accelerate::data {

/// Batch of the built-in loaders: for (auto& [images, labels] : loader).
struct Batch {
  at::Tensor data;    ///< [B, ...]
  at::Tensor target;  ///< [B, ...]; undefined if the source has no targets
};

/// Makes a Batch a tree for accelerate::tree.
inline auto tree_members(Batch& batch) { return std::tie(batch.data, batch.target); }

}  // namespace accelerate::data
