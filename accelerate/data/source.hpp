// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "accelerate/data/batch.hpp"

namespace accelerate::data {

/// Samples with numbers, read batch by batch. A batch is whatever holds tensors for accelerate::tree: a Batch, a struct
/// with tree_members, a vector, map or pair. A new kind of data is one subclass.
template <typename AnyBatch>
class SourceOf {
 public:
  using BatchType = AnyBatch;

  SourceOf() = default;
  SourceOf(const SourceOf&) = delete;
  SourceOf& operator=(const SourceOf&) = delete;
  virtual ~SourceOf() = default;

  /// N, does not change.
  [[nodiscard]] virtual int64_t size() const = 0;

  /// indices   [B] int64 on the CPU, each 0 .. size()-1, repeats allowed
  /// returns   those samples in that order, in storage of their own: the caller may change and keep it
  /// Called from one thread at a time per loader; several loaders may share a source.
  [[nodiscard]] virtual AnyBatch read(const at::Tensor& indices) const = 0;
};

/// Of the convenient pair.
using Source = SourceOf<Batch>;

}  // namespace accelerate::data
