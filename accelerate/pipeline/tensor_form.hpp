// SPDX-License-Identifier: Apache-2.0
// Dtype and shape of a tensor as a message. Private.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace accelerate::pipeline {

struct TensorForm {
  /// As many dimensions as comm::Group transfers.
  static constexpr size_t kMaxDims = 16;
  static constexpr int64_t kWords = 2 + kMaxDims;

  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes{};

  bool operator==(const TensorForm&) const = default;
};

[[nodiscard]] TensorForm form_of(const at::Tensor& tensor);

/// "[3, 5] float32"
[[nodiscard]] std::string describe_form(const TensorForm& form);

/// Message of [kWords] int64 on the CPU.
/// \throws Error (usage) for more than kMaxDims dimensions.
[[nodiscard]] at::Tensor encode(const TensorForm& form);
[[nodiscard]] TensorForm decode_form(const at::Tensor& message);

}  // namespace accelerate::pipeline
