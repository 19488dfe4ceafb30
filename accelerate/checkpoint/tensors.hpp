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

/// Returns the tensor detached, on the CPU, dense and row-major, as its bytes are written.
/// \throws Error (usage) with the name of a sparse, quantized or undefined tensor.
[[nodiscard]] at::Tensor as_written(const at::Tensor& tensor, std::string_view name, std::string_view operation);
/// The bytes of a tensor that as_written() gave.
[[nodiscard]] std::string_view bytes_of(const at::Tensor& tensor);

/// Where its bytes begin; null where it has none: without elements, undefined, sparse.
[[nodiscard]] const void* memory_of(const at::Tensor& tensor);
/// Tied: the same bytes under the same shape, strides and dtype, so that one of them is both. What has no bytes is tied
/// to nothing: such tensors are written and missed each by its own name, as safetensors.torch does.
[[nodiscard]] bool same_memory(const at::Tensor& a, const at::Tensor& b);

/// "[2, 3]"
[[nodiscard]] std::string shape_of(const at::Tensor& tensor);

}  // namespace accelerate::checkpoint
