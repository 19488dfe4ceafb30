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
[[nodiscard]] bool is_random(const c10::OperatorHandle& op);
/// True if the operator returns a new tensor, computed for each element from the first argument and numbers.
/// \param deferring  If false, only changes of the dtype.
[[nodiscard]] bool is_elementwise_copy(const c10::OperatorHandle& op, bool deferring);
/// Returns the dtype of such a copy. Unset if the copy has other strides or another device than its source, or if its
/// dtype depends on promotion.
[[nodiscard]] std::optional<c10::ScalarType> dtype_of_copy(const c10::OperatorHandle& op,
                                                           const torch::jit::Stack& arguments);
/// True for functions such as zeros() that call empty() and a fill.
[[nodiscard]] bool consists_of_deferrable(const c10::OperatorHandle& op);

struct EmptyLayout {
  std::vector<int64_t> sizes{};
  std::optional<std::vector<int64_t>> strides{};
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::optional<c10::MemoryFormat> memory_format{};
};
/// Returns what empty() or empty_strided() creates. Unset for other operators, devices and layouts.
[[nodiscard]] std::optional<EmptyLayout> layout_of_empty(const c10::OperatorHandle& op,
                                                         const torch::jit::Stack& arguments);

}  // namespace accelerate::deferred
