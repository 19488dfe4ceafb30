// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/sources/csv_classes.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace accelerate::data {

CsvClasses::CsvClasses(const std::vector<std::string>& names) : given_(!names.empty()) {
  for (const auto& name : names) keys_.emplace(name, static_cast<int64_t>(keys_.size()));
}

bool CsvClasses::take(std::string_view name) {
  if (!accepts(name)) return false;
  auto known = keys_.find(name);
  if (known == keys_.end()) known = keys_.emplace(name, static_cast<int64_t>(keys_.size())).first;
  taken_.push_back(known->second);
  return true;
}

/// Class numbers, indexed by key.
std::vector<int64_t> CsvClasses::numbers() const {
  std::vector<int64_t> numbers(keys_.size());
  int64_t sorted = 0;
  for (const auto& [name, key] : keys_) numbers[static_cast<size_t>(key)] = given_ ? key : sorted++;
  return numbers;
}

std::vector<std::string> CsvClasses::names() const {
  std::vector<std::string> names(keys_.size());
  const auto number = numbers();
  for (const auto& [name, key] : keys_) names[static_cast<size_t>(number[static_cast<size_t>(key)])] = name;
  return names;
}

at::Tensor CsvClasses::tensor() const {
  auto tensor = at::empty({static_cast<int64_t>(taken_.size())}, at::TensorOptions().dtype(at::kLong));
  std::transform(taken_.begin(), taken_.end(), tensor.mutable_data_ptr<int64_t>(),
                 [number = numbers()](int64_t key) { return number[static_cast<size_t>(key)]; });
  return tensor;
}

}  // namespace accelerate::data
