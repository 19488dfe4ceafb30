// SPDX-License-Identifier: Apache-2.0
// Private: the memory of a storage before its values are computed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "accelerate/deferred/pages.hpp"
#include "accelerate/deferred/value_recipe.hpp"

namespace accelerate::deferred {

/// Either Pages, or no memory and a recipe. Thread-safe.
class DeferredMemory : public std::enable_shared_from_this<DeferredMemory> {
 public:
  /// The memory is absent.
  explicit DeferredMemory(ValueRecipe recipe) : recipe_(std::move(recipe)) {}
  DeferredMemory(const DeferredMemory&) = delete;
  DeferredMemory& operator=(const DeferredMemory&) = delete;
  /// Memory of a tensor that nothing filled yet. Code without operators may write to it.
  static std::shared_ptr<DeferredMemory> untouched(size_t bytes);

  [[nodiscard]] bool is_absent() const;
  /// True after finish() or materialize().
  [[nodiscard]] bool is_final() const;
  [[nodiscard]] size_t bytes() const { return recipe_.bytes(); }
  [[nodiscard]] void* address() const;
  [[nodiscard]] std::shared_ptr<const ValueRecipe> snapshot() const;
  /// Records an operator, and releases the memory. `storage` must have this memory.
  /// \returns False, without an effect, if the memory is final.
  bool add(c10::StorageImpl& storage, RecordedOperator next, bool replaces_all);
  /// Computes the values, and gives them to the storage.
  void materialize(c10::StorageImpl& storage);
  /// Makes untouched pages the final memory, to which operators write.
  void finish();

 private:
  mutable std::mutex mutex_{};
  ValueRecipe recipe_;
  std::optional<Pages> pages_{};
  bool is_final_ = false;
};

/// Gives the storage deferred memory.
void attach(c10::StorageImpl& storage, std::shared_ptr<DeferredMemory> memory);
/// Returns null if the tensor has ordinary memory.
[[nodiscard]] std::shared_ptr<DeferredMemory> deferred_memory_of(const at::Tensor& tensor);
/// Computes the values of the tensor's storage if its memory is absent.
void materialize_storage(const at::Tensor& tensor);

}  // namespace accelerate::deferred
