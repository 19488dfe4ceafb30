// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace accelerate::state {

/// Value of an optimizer option; std::monostate is Python's None.
using OptionValue = std::variant<std::monostate, bool, int64_t, double, std::pair<double, double>>;

struct OptimizerGroup {
  std::vector<std::pair<std::string, OptionValue>> options{};
  /// Indices of the group's parameters, counted from 0 over all groups.
  std::vector<int64_t> parameters{};
};

/// State of an optimizer, with the structure of PyTorch's state_dict().
struct OptimizerState {
  std::vector<OptimizerGroup> groups{};
  /// State tensors by parameter index and name: "exp_avg" with the parameter's shape, "step" as 0-dim float32.
  std::map<int64_t, std::vector<std::pair<std::string, at::Tensor>>> tensors{};
  /// Names of the parameters by index if the file identifies them by name, as with FSDP; otherwise empty.
  std::vector<std::string> parameter_names{};
  /// Output of save() of an optimizer with unknown state, as a LibTorch archive. Otherwise empty.
  std::string own{};
};

}  // namespace accelerate::state
