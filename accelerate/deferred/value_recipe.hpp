// SPDX-License-Identifier: Apache-2.0
// Private: the operators that compute the values of one tensor.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace accelerate::deferred {

/// Sizes and strides of a tensor, and its place in its storage.
struct Geometry {
  static Geometry of(const at::Tensor& tensor);
  /// Returns a view of the storage.
  [[nodiscard]] at::Tensor view(const c10::Storage& storage) const;
  /// Returns new memory with the same sizes and strides.
  [[nodiscard]] at::Tensor allocate() const;
  /// True if the elements are exactly those of its storage, each once.
  [[nodiscard]] bool fills(size_t storage_bytes) const;

  std::vector<int64_t> sizes{}, strides{};
  int64_t offset = 0;  ///< in elements
  c10::ScalarType dtype = c10::ScalarType::Float;
};

/// An operator with its arguments, without the first one, which is a tensor.
struct RecordedOperator {
  c10::OperatorHandle op;
  std::vector<c10::IValue> rest{};
  Geometry first{};
  at::Tensor generator_state{};  ///< defined for random operators
  int64_t generator_argument = -1;

  /// \param argument  Replaces the first argument.
  /// \returns         The result of the operator.
  [[nodiscard]] at::Tensor run(const at::Tensor& argument) const;
};

/// How to compute the bytes of a storage: a source, and operators that change it in place. Values are computed as often
/// as build() is called, because the states of random generators are recorded.
class ValueRecipe {
 public:
  explicit ValueRecipe(size_t bytes) : bytes_(bytes) {}
  /// The values are the result of an operator on another tensor.
  ValueRecipe(size_t bytes, std::shared_ptr<const ValueRecipe> source, RecordedOperator from_source);

  /// \param replaces_all  True if no earlier value remains.
  void add(RecordedOperator next, bool replaces_all);
  [[nodiscard]] bool is_empty() const { return source_ == nullptr && operators_.empty(); }
  [[nodiscard]] size_t bytes() const { return bytes_; }
  [[nodiscard]] c10::Storage build() const;

 private:
  size_t bytes_;
  std::shared_ptr<const ValueRecipe> source_{};
  std::vector<RecordedOperator> operators_{};  // the first one is applied to the source, if there is one
};

}  // namespace accelerate::deferred
