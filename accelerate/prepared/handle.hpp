// SPDX-License-Identifier: Apache-2.0
// Shared by all handles of prepared objects. A handle is empty until the result of prepare() is assigned to it.
#pragma once

#include <memory>
#include <string_view>

namespace accelerate::prepared {

/// \throws Error (usage) always: the handle is empty.
[[noreturn]] void refuse_empty(std::string_view handle);

/// \param handle  Name of the handle type for the error.
/// \returns the pointer.
/// \throws Error (usage) if nothing was assigned to the handle.
template <typename T>
const std::shared_ptr<T>& assigned(const std::shared_ptr<T>& pointer, std::string_view handle) {
  if (!pointer) refuse_empty(handle);
  return pointer;  // NOLINT(bugprone-return-const-ref-from-parameter): the overload for temporaries is deleted
}
template <typename T>
void assigned(const std::shared_ptr<T>&& pointer, std::string_view handle) = delete;

}  // namespace accelerate::prepared
