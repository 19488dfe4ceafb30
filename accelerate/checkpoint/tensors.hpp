// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace accelerate::checkpoint {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Names of a dtype in both formats: "BF16" in safetensors, "BFloat16Storage" in torch.save files.
struct DtypeNames {
  c10::ScalarType dtype;
  std::string_view safetensors;
  std::string_view storage;
};
[[nodiscard]] std::optional<DtypeNames> names_of(c10::ScalarType dtype);
[[nodiscard]] std::optional<c10::ScalarType> dtype_of_safetensors(std::string_view name);
[[nodiscard]] std::optional<c10::ScalarType> dtype_of_storage(std::string_view name);

/// Returns the values of a placeholder: a tensor on the meta device with the shape, dtype and strides of the values.
/// Called once for each placeholder, when its bytes are written, so that not all values need memory at once.
using ProvideValues = std::function<at::Tensor(const at::Tensor& placeholder)>;

/// \throws Error (usage) with the name of a sparse, quantized or undefined tensor.
void check_can_be_written(const at::Tensor& tensor, std::string_view name, std::string_view operation);
/// Returns the tensor detached, on the CPU, dense and row-major, as its bytes are written.
/// \throws Error (usage) with the name of a sparse, quantized or undefined tensor.
[[nodiscard]] at::Tensor as_written(const at::Tensor& tensor, std::string_view name, std::string_view operation);
/// Returns the bytes of a tensor from as_written().
[[nodiscard]] std::string_view tensor_bytes(const at::Tensor& tensor);

/// Returns the address of the first byte; null for a tensor without bytes (no elements, undefined or sparse). For a
/// placeholder it returns the TensorImpl, because the same placeholder has the same values.
[[nodiscard]] const void* data_address(const at::Tensor& tensor);
/// True for tied tensors: equal bytes in memory, shape, strides and dtype. Tensors without bytes are never tied, so
/// each is written under its own name, as in safetensors.torch.
[[nodiscard]] bool same_memory(const at::Tensor& a, const at::Tensor& b);

/// "[2, 3]"
[[nodiscard]] std::string shape_of(const at::Tensor& tensor);

}  // namespace accelerate::checkpoint
