// SPDX-License-Identifier: Apache-2.0
// Costs of layers, by which they are divided into stages.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "accelerate/pipeline/layers.hpp"

namespace accelerate::pipeline {

/// Returns the number of parameter elements of each layer plus one, [L].
[[nodiscard]] std::vector<double> parameter_costs(const Layers& layers);

/// Measures a forward and a backward of each layer and returns the shortest of several runs in seconds, [L].
/// Parameters, gradients, buffers and the generator of the CPU are unchanged afterwards. Another rank measures other
/// times: ranks take the costs of the first one (Pipeline does this).
///
/// \param layers   On the device of the input.
/// \param input    A micro-batch, [rows, ...].
/// \param repeats  At least 1.
/// \throws Error (usage) if `repeats` is less than 1.
[[nodiscard]] std::vector<double> measured_costs(const Layers& layers, const at::Tensor& input, int64_t repeats = 3);

}  // namespace accelerate::pipeline
