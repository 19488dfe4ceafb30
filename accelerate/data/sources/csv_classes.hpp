// SPDX-License-Identifier: Apache-2.0
// Maps names of classes to numbers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::data {

class CsvClasses {
 public:
  /// \param names  In order of their numbers. If empty, the names in the file, sorted by bytes.
  explicit CsvClasses(const std::vector<std::string>& names);

  /// False if the name is not among the given names.
  [[nodiscard]] bool accepts(std::string_view name) const { return !given_ || keys_.contains(name); }
  /// \returns accepts(name)
  bool take(std::string_view name);
  [[nodiscard]] std::vector<std::string> names() const;
  /// [N] int64, indices into names().
  [[nodiscard]] at::Tensor tensor() const;

 private:
  [[nodiscard]] std::vector<int64_t> numbers() const;

  bool given_;
  std::map<std::string, int64_t, std::less<>> keys_;  // name to key; keys count the names in order of appearance
  std::vector<int64_t> taken_;                        // keys
};

}  // namespace accelerate::data
