// SPDX-License-Identifier: Apache-2.0
// Sizes and names of a module's tensors, without their values.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace accelerate {

/// Returns the groups of parameter names that refer to one tensor, each group in alphabetical order.
[[nodiscard]] std::vector<std::vector<std::string>> find_tied_parameters(const torch::nn::Module& module);

/// Dtypes of single tensors by name, which take precedence over a common dtype.
using SpecialDtypes = std::map<std::string, c10::ScalarType>;

/// Returns the bytes of each submodule, parameter and buffer by name; "" is the whole module. A tied parameter counts
/// under its first name only. A bool counts one byte.
/// \param dtype         If set, wider floating-point tensors count as if converted to it.
/// \param buffers_only  If true, parameters do not count.
[[nodiscard]] std::map<std::string, int64_t> compute_module_sizes(const torch::nn::Module& module,
                                                                  std::optional<c10::ScalarType> dtype = std::nullopt,
                                                                  const SpecialDtypes& special_dtypes = {},
                                                                  bool buffers_only = false);

}  // namespace accelerate
