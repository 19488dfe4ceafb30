// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

namespace accelerate::optim {

/// A number for all parameter groups, or a list with one for each: 0.1, or {0.1, 0.01}.
class PerGroup {
 public:
  PerGroup(double value_for_all_groups) : values_{value_for_all_groups}, for_all_(true) {}
  PerGroup(std::initializer_list<double> each) : values_(each) {}
  PerGroup(std::vector<double> each) : values_(std::move(each)) {}

  [[nodiscard]] bool value_for_all_groups() const { return for_all_; }
  /// Returns one value per group. \throws Error (usage), with schedule and name, for a list of another length.
  [[nodiscard]] std::vector<double> of(size_t groups, std::string_view schedule, std::string_view name) const;

 private:
  std::vector<double> values_;
  bool for_all_ = false;
};

}  // namespace accelerate::optim
