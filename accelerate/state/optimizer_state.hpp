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

/// An option of an optimizer's; std::monostate is Python's None.
using OptionValue = std::variant<std::monostate, bool, int64_t, double, std::pair<double, double>>;

struct OptimizerGroup {
  std::vector<std::pair<std::string, OptionValue>> options{};
  /// The group's parameters, numbered through all groups from 0.
  std::vector<int64_t> parameters{};
};

/// What an optimizer remembers, as the state_dict() of PyTorch's has it.
struct OptimizerState {
  std::vector<OptimizerGroup> groups{};
  /// By parameter, by name: "exp_avg" of the parameter's shape, "step" float32 and 0-dim.
  std::map<int64_t, std::vector<std::pair<std::string, at::Tensor>>> tensors{};
  /// Of an optimizer that only itself knows: what its save() wrote, LibTorch's archive. Else empty.
  std::string own{};
};

}  // namespace accelerate::state
