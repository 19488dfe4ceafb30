// SPDX-License-Identifier: Apache-2.0
// Private: RMSprop's update of lists of tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "accelerate/optim/fused_step.hpp"

namespace accelerate::optim {

struct RMSpropNumbers {
  double lr, alpha, eps, weight_decay, momentum;
  bool centered;
};

// Lists of one dtype and device; the i-th tensors of all lists have the same dense layout. `buffers` is empty without
// momentum, `means` unless the update is centered.
struct RMSpropLists {
  const std::vector<at::Tensor>&parameters, &gradients, &squares, &buffers, &means;
};

// One pass over the memory. Must not be called for steps that scale.skip cancels.
void rmsprop_on_cpu(const RMSpropLists& lists, const RMSpropNumbers& numbers, const StepScale& scale);

// Uses operators on lists; scale.skip is read on the device. If rate (0-dim on the device) is defined, it replaces
// numbers.lr.
void rmsprop_on_device(const RMSpropLists& lists, const RMSpropNumbers& numbers, const StepScale& scale,
                       const at::Tensor& rate);

}  // namespace accelerate::optim
