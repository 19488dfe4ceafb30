// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include "accelerate/base/error.hpp"

namespace accelerate::prepared {

/// \throws Error (usage) if the module is an nn::Pipeline, because its ranks have different parameters.
void refuse_pipeline(const torch::nn::Module& module, const RankContext& place);

}  // namespace accelerate::prepared
