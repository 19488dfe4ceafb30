// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "accelerate/data/loader.hpp"

namespace accelerate::data {

/// Samples that lie in memory.
///
/// data     [N, ...] on the CPU, referenced, not copied
/// target   [N, ...] on the CPU; undefined: batches have no target
/// A batch is one index_select per tensor. Throws Error (usage) where the two disagree about N.
[[nodiscard]] std::shared_ptr<const Source> memory_source(at::Tensor data, at::Tensor target = {});

/// A loader over memory_source(data, target).
[[nodiscard]] Loader from_tensors(at::Tensor data, at::Tensor target, const LoaderOptions& options = {});

}  // namespace accelerate::data
