// SPDX-License-Identifier: Apache-2.0
// Private: actions before and after every backward of prepared models.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include "accelerate/prepared/accelerator_state.hpp"

namespace accelerate::prepared {

/// \throws Error (usage) if the loss has no autograd graph because train_step() of a Pipeline returned it.
void check_has_autograd_graph(AcceleratorState& shared, const at::Tensor& loss);

/// Checks the position of the backward in the training loop, and counts the backward.
/// \throws Error (usage) for a misplaced accumulate() scope, and if a parameter changed since the last backward.
void begin_backward(AcceleratorState& shared);

/// \throws Error (data) if stop_at_nan_loss is set and the loss is NaN. The host then waits for the device.
void check_loss_is_not_nan(const AcceleratorState& shared, const at::Tensor& loss);

/// Returns the initial gradient of the loss: the weight times the loss scale. Without a loss scale, a weight of 1
/// returns an undefined tensor, so that no multiplication runs. Call it within run_backward().
[[nodiscard]] at::Tensor backward_seed(const AcceleratorState& shared, const at::Tensor& loss, double weight);

using Run = c10::function_ref<void()>;

/// Runs `backward`, and updates the loss scale, the accumulation window, the optimizers and the step watch. An
/// out-of-memory error lists the memory of all prepared objects.
/// \param backward  Adds to the gradients of this rank.
/// \param reduced   Calls its argument, which runs `backward`, and reduces the gradients during or after this call.
void run_backward(AcceleratorState& shared, Run backward, c10::function_ref<void(Run)> reduced);

/// Runs `backward`, and reduces its gradients by the gradient reducers and the sharding of all prepared models.
void run_with_reducers(AcceleratorState& shared, Run backward);

}  // namespace accelerate::prepared
