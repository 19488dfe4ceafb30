// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "accelerate/archive/mapped_file.hpp"

namespace accelerate::checkpoint {

/// Returns bytes of a mapped file from `begin` on as a row-major tensor, which keeps the file mapped. Bytes that are
/// not aligned for their dtype are copied.
[[nodiscard]] at::Tensor mapped_tensor(const std::shared_ptr<archive::MappedFile>& file, uint64_t begin,
                                       const std::vector<int64_t>& sizes, c10::ScalarType dtype);

}  // namespace accelerate::checkpoint
