// SPDX-License-Identifier: Apache-2.0
// Private: which operators are recorded, decided by their names and arguments.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace accelerate::deferred {

enum class Change { unknown, fills, modifies };

/// Returns how the operator changes its first argument. A fill does not depend on earlier values.
[[nodiscard]] Change change_by(const c10::OperatorHandle& op);
/// True for copy_(). Its second argument may be a deferred tensor of any shape.
[[nodiscard]] bool is_fill_from_tensor(const c10::OperatorHandle& op);
[[nodiscard]] bool is_random(const c10::OperatorHandle& op);
/// True for functions that create a tensor by empty() and copy their argument to it: clone() and to().
[[nodiscard]] bool is_copy(const c10::OperatorHandle& op);
/// Returns the in-place form of arithmetic on a tensor and a number. Unset for other operators, and if the result may
/// have another dtype than the tensor.
[[nodiscard]] std::optional<c10::OperatorHandle> in_place_arithmetic(const c10::OperatorHandle& op,
                                                                     const torch::jit::Stack& arguments);
/// True for functions such as zeros() that call empty() and a fill.
[[nodiscard]] bool consists_of_deferrable(const c10::OperatorHandle& op);

struct EmptyLayout {
  std::vector<int64_t> sizes{};
  std::optional<std::vector<int64_t>> strides{};
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::optional<c10::MemoryFormat> memory_format{};
  c10::Device device = c10::Device(c10::kCPU);
};
/// Returns what empty() or empty_strided() creates. Unset for other operators and layouts.
[[nodiscard]] std::optional<EmptyLayout> layout_of_empty(const c10::OperatorHandle& op,
                                                         const torch::jit::Stack& arguments);

}  // namespace accelerate::deferred
