// SPDX-License-Identifier: Apache-2.0
// Modules of a network by the names of their classes.
#pragma once

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "accelerate/base/error.hpp"

namespace accelerate::prepared {

/// Returns the names in named_modules() of the modules of these classes, those within others first, without the network
/// itself. A class is named as in C++ or TorchScript, with or without namespaces, and with or without LibTorch's suffix
/// Impl.
///
/// \throws Error (usage) with the classes of the network if one of `classes` has no module.
[[nodiscard]] std::vector<std::string> modules_of_classes(const torch::nn::Module& net,
                                                          const std::vector<std::string>& classes,
                                                          const RankContext& place);
/// Overload for TorchScript.
[[nodiscard]] std::vector<std::string> modules_of_classes(const torch::jit::Module& net,
                                                          const std::vector<std::string>& classes,
                                                          const RankContext& place);

}  // namespace accelerate::prepared
