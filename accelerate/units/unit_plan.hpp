// SPDX-License-Identifier: Apache-2.0
// Divides the parameters of a model into units by their names. Pure values, no tensors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace accelerate::units {

struct UnitItem {
  /// Name in named_parameters(): "blocks.3.norm.weight".
  std::string name{};
  int64_t numel = 0;
  int64_t bytes = 0;
};

struct UnitOptions {
  /// Names of modules that are units, as in named_modules(); "*" replaces one component: {"blocks.*", "head"}. If
  /// empty, the children of the outermost ModuleList and Sequential are units.
  std::vector<std::string> units{};
  /// Names of classes with modules that are units: {"Block"}. find_units() does not read them, because a class is not
  /// part of a parameter's name.
  std::vector<std::string> classes{};
  /// A child with fewer bytes is not a unit. Other parameters are packed in the order of the model until they have so
  /// many bytes.
  int64_t min_bytes = 1 << 20;
  /// If above 0, counts elements in place of min_bytes.
  int64_t min_num_params = 0;
  bool operator==(const UnitOptions&) const = default;
};

/// Returns the number of each parameter's unit, from 0 in the order of the parameters. A child of a list that has more
/// than a quarter of the model is divided again if it contains a list itself. A parameter that is directly in a list
/// (ParameterList) belongs to no child.
[[nodiscard]] std::vector<int64_t> find_units(std::span<const UnitItem> items, const UnitOptions& options);

}  // namespace accelerate::units
