// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "accelerate/data/batch.hpp"

namespace accelerate::data {

/// Samples with numbers. A new kind of data is one subclass.
class Source {
 public:
  Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  virtual ~Source() = default;

  /// N, does not change.
  [[nodiscard]] virtual int64_t size() const = 0;

  /// indices   [B] int64 on the CPU, each 0 .. size()-1, repeats allowed
  /// returns   those samples in that order, in storage of their own: the caller may change and keep it
  /// Called from one thread at a time per loader; several loaders may share a source.
  [[nodiscard]] virtual Batch read(const at::Tensor& indices) const = 0;
};

}  // namespace accelerate::data
