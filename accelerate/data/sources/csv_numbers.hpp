// SPDX-License-Identifier: Apache-2.0
// Collects numbers from text into one tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

namespace accelerate::data {

class CsvNumbers {
 public:
  enum class AttemptResult { taken, missing, no_number };

  /// \param dtype  float32, float64 or int64.
  /// \param fill   Replacement of a missing number. If unset, a missing number is refused.
  CsvNumbers(at::ScalarType dtype, std::optional<double> fill);

  /// Empty text, NA and nan are missing numbers. Surrounding spaces are ignored.
  AttemptResult take(std::string_view text);
  /// The last number. Only for int64.
  [[nodiscard]] int64_t last() const { return std::get<std::vector<int64_t>>(values_).back(); }
  [[nodiscard]] size_t size() const;
  /// Drops the numbers from `size` on.
  void cut(size_t size);

  /// Returns all numbers without a copy. Call it once.
  at::Tensor tensor(at::IntArrayRef shape);

 private:
  std::variant<std::vector<float>, std::vector<double>, std::vector<int64_t>> values_;
  std::optional<double> fill_;
};

}  // namespace accelerate::data
