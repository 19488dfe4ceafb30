// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/fused_step.hpp"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <typeinfo>

#include "accelerate/optim/fused_steps.hpp"

namespace accelerate::optim {

std::unique_ptr<FusedStep> FusedStep::for_optimizer(torch::optim::Optimizer& optimizer) {
  using namespace torch::optim;
  const std::type_info& type = typeid(optimizer);
  if (type == typeid(SGD)) return fused_sgd(optimizer);
  if (type == typeid(Adam)) return fused_adam(optimizer);
  if (type == typeid(AdamW)) return fused_adamw(optimizer);
  if (type == typeid(Adagrad)) return fused_adagrad(optimizer);
  if (type == typeid(RMSprop)) return fused_rmsprop(optimizer);
  return nullptr;
}

}  // namespace accelerate::optim
