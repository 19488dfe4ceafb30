// SPDX-License-Identifier: Apache-2.0
// Value types of trackers.
#pragma once

#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace accelerate::tracking {

/// Tensors with one element, from any library.
template <typename T>
concept ScalarTensor = requires(const T& tensor) {
  { tensor.template item<double>() } -> std::convertible_to<double>;
};

/// A number, a text, or a group of related numbers by name (for example training and validation loss).
class Value {
 public:
  using Group = std::map<std::string, double>;
  using Kind = std::variant<bool, int64_t, double, std::string, Group>;

  template <typename T>
  requires std::is_arithmetic_v<T> Value(T number) : kind_(number_of(number)) {}
  Value(const char* text) : kind_(std::string(text)) {}
  Value(std::string_view text) : kind_(std::string(text)) {}
  Value(std::string text) : kind_(std::move(text)) {}
  Value(Group group) : kind_(std::move(group)) {}
  /// Reads a tensor with one element. The host waits for its device.
  template <ScalarTensor Tensor>
  Value(const Tensor& tensor) : kind_(tensor.template item<double>()) {}

  [[nodiscard]] const Kind& kind() const { return kind_; }
  bool operator==(const Value&) const = default;

 private:
  template <typename T>
  static Kind number_of(T number) {
    if constexpr (std::same_as<T, bool>) {
      return number;
    } else if constexpr (std::integral<T>) {
      return static_cast<int64_t>(number);
    } else {
      return static_cast<double>(number);
    }
  }
  Kind kind_;
};

/// Values by name, in the order of the call.
using Values = std::vector<std::pair<std::string, Value>>;

/// Expands groups: "loss" of {train, test} becomes loss/train and loss/test.
[[nodiscard]] Values flattened(const Values& values);

/// Returns the value as a number (bools as 0 and 1). Returns nothing for texts and groups.
[[nodiscard]] std::optional<double> number_of(const Value& value);

/// Counter of the program: optimizer steps, batches or epochs.
using Step = std::optional<int64_t>;

/// An image with 8 bits per channel.
struct Image {
  int64_t height = 0, width = 0;
  int64_t channels = 0;           ///< 1 grey, 2 grey and alpha, 3 RGB, 4 RGBA
  std::vector<uint8_t> pixels{};  ///< [height, width, channels]
};

/// Distribution of numbers in buckets.
struct Histogram {
  double lowest = 0.0, highest = 0.0;
  double count = 0.0, sum = 0.0, sum_of_squares = 0.0;
  std::vector<double> limits{};  ///< upper limit of each bucket, not included in the bucket
  std::vector<double> counts{};  ///< one per bucket
};

/// Uses TensorBoard's buckets: the limits grow by a factor of 1.1 from 1e-12 to 1e20, symmetrically around 0.
/// Infinities and NaNs are ignored.
[[nodiscard]] Histogram histogram_of(std::span<const double> numbers);

}  // namespace accelerate::tracking
