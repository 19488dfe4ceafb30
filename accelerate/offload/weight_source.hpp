// SPDX-License-Identifier: Apache-2.0
// Private: where the values of a parameter are, and how they are read.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "accelerate/offload/weight_file.hpp"

namespace accelerate::offload {

/// The row-major values of a parameter: a tensor on the CPU, or a range of a file.
struct WeightSource {
  at::Tensor tensor{};  ///< undefined if `file` is set
  std::shared_ptr<const WeightFile> file{};
  uint64_t begin = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;  ///< of the values in the file
};

/// Writes the values to memory on the CPU, converted as Tensor::to() does. Needs memory for a small part of the values
/// in their dtype. Thread-safe.
/// \param dtype  Dtype of the written values.
/// \param bytes  Size of the written values.
void read_values(const WeightSource& source, c10::ScalarType dtype, void* to, size_t bytes);

}  // namespace accelerate::offload
