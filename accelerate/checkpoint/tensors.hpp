// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace accelerate::checkpoint {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// A dtype by the names that the two formats have for it: "BF16" in safetensors, "BFloat16Storage" in torch.save's.
struct DtypeNames {
  c10::ScalarType dtype;
  std::string_view safetensors;
  std::string_view storage;
};
[[nodiscard]] std::optional<DtypeNames> names_of(c10::ScalarType dtype);
[[nodiscard]] std::optional<c10::ScalarType> dtype_of_safetensors(std::string_view name);
[[nodiscard]] std::optional<c10::ScalarType> dtype_of_storage(std::string_view name);

/// Detached, on the CPU, dense and row-major: as its bytes are written.
/// Throws Error (usage) with the name for a sparse, quantised or undefined tensor.
[[nodiscard]] at::Tensor as_written(const at::Tensor& tensor, std::string_view name, std::string_view operation);
/// The bytes of a tensor that as_written() gave.
[[nodiscard]] std::string_view bytes_of(const at::Tensor& tensor);

/// "[2, 3]"
[[nodiscard]] std::string shape_of(const at::Tensor& tensor);

}  // namespace accelerate::checkpoint
