// SPDX-License-Identifier: Apache-2.0
// Private: tensors as the compiled code expects them. It checks neither dtype, shape nor strides.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "accelerate/nn/compiled_record.hpp"

namespace accelerate::nn::compiled {

/// Returns a differentiable copy. A clone would have no gaps between rows.
[[nodiscard]] at::Tensor copy_with_strides(const at::Tensor& tensor, at::IntArrayRef strides);

/// Returns the tensor itself if it fits, otherwise a differentiable copy with the expected strides and an alignment of
/// 16 bytes, which vectorised kernels need.
///
/// \param name      For errors: "input 0".
/// \param sizes     Values of the dynamic sizes; -1 is unknown and set from the tensor.
/// \throws Error (usage) for another dtype, device or shape, and for a dynamic size outside its range.
[[nodiscard]] at::Tensor fit(const at::Tensor& tensor, const Layout& layout, const std::string& name,
                             c10::Device device, std::vector<int64_t>& sizes, const Record& record,
                             const archive::Origin& origin);

}  // namespace accelerate::nn::compiled
