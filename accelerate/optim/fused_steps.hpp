// SPDX-License-Identifier: Apache-2.0
// Private: factories of the fused steps; each expects exactly its optimizer type.
#pragma once

#include <memory>

#include "accelerate/optim/fused_step.hpp"

namespace accelerate::optim {

std::unique_ptr<FusedStep> fused_sgd(torch::optim::Optimizer& optimizer);
std::unique_ptr<FusedStep> fused_adam(torch::optim::Optimizer& optimizer);
std::unique_ptr<FusedStep> fused_adamw(torch::optim::Optimizer& optimizer);
std::unique_ptr<FusedStep> fused_adagrad(torch::optim::Optimizer& optimizer);
std::unique_ptr<FusedStep> fused_rmsprop(torch::optim::Optimizer& optimizer);

}  // namespace accelerate::optim
