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

class ValueRecipe;

/// Sizes and strides of a tensor, and its place in its storage.
struct Geometry {
  static Geometry of(const at::Tensor& tensor);
  /// Returns a view of the storage.
  [[nodiscard]] at::Tensor view(const c10::Storage& storage) const;
  /// True if the elements are exactly those of its storage, each once.
  [[nodiscard]] bool fills(size_t storage_bytes) const;
  bool operator==(const Geometry&) const = default;

  std::vector<int64_t> sizes{}, strides{};
  int64_t offset = 0;  ///< in elements
  c10::ScalarType dtype = c10::ScalarType::Float;
};

/// A deferred tensor that an operator reads, with the values that it had when the operator was recorded.
struct RecordedSource {
  std::shared_ptr<const ValueRecipe> recipe{};
  Geometry geometry{};
};

/// An operator that changes its first argument in place.
struct RecordedOperator {
  c10::OperatorHandle op;
  Geometry target{};
  std::vector<c10::IValue> rest{};  ///< arguments behind the target
  RecordedSource source{};          ///< replaces the second argument if it has a recipe
  at::Tensor generator_state{};     ///< defined for random operators
  size_t generator_argument = 0;

  void run(const c10::Storage& storage) const;
};

/// How to compute the bytes of a storage. Values are computed as often as build() is called, because the states of
/// random generators are recorded.
class ValueRecipe {
 public:
  ValueRecipe(size_t bytes, c10::Device device) : bytes_(bytes), device_(device) {}

  /// \param replaces_all  True if no earlier value remains.
  void add(RecordedOperator next, bool replaces_all);
  [[nodiscard]] size_t bytes() const { return bytes_; }
  [[nodiscard]] c10::Device device() const { return device_; }
  [[nodiscard]] c10::Storage build() const;

 private:
  [[nodiscard]] bool is_copied_by(const RecordedOperator& next) const;

  size_t bytes_;
  c10::Device device_;
  std::vector<RecordedOperator> operators_{};
};

}  // namespace accelerate::deferred
