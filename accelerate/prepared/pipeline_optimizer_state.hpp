// SPDX-License-Identifier: Apache-2.0
// Private: the state of optimizers with parameters on all stages of a pipeline.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "accelerate/checkpoint/checkpoint_content.hpp"
#include "accelerate/prepared/accelerator_state.hpp"
#include "accelerate/state/optimizer_state.hpp"

namespace accelerate::prepared {

class OptimizerCore;

/// Names of the parameters of an optimizer on all stages by parameter group, such as "model.0/0.weight". Each name
/// occurs once, in the order of the whole model. An optimizer in one process numbers its parameters in this order.
using OptimizerParameterNames = std::vector<std::vector<std::string>>;

/// \throws Error (usage) if a parameter of an optimizer belongs to no Pipeline, or is listed in another order than that
///         of the model, from which the numbers of parameters follow.
void check_optimizers_of_stages(AcceleratorState& shared, std::string_view operation);

/// Returns the parameters by index of the optimizer. Without stages the lists are empty, and nothing is transferred.
/// Collective over the pipeline group, after check_stages().
/// \throws Error (usage) on all stages if their optimizers differ in number, type, groups or options.
[[nodiscard]] std::vector<OptimizerParameterNames> optimizer_parameter_names(AcceleratorState& shared,
                                                                             std::string_view operation);

/// Moves the tensors of all optimizers to the parts of this stage, with the numbers of the whole model.
void move_optimizers_to_parts(AcceleratorState& shared, const std::vector<OptimizerParameterNames>& optimizers,
                              checkpoint::CheckpointContent& content);

/// Removes the state of other stages from the saved state.
/// \throws Error (data) if the number of parameters in a group differs.
void keep_own_stage(AcceleratorState& shared, const OptimizerCore& optimizer, const OptimizerParameterNames& whole,
                    state::OptimizerState& saved);
}  // namespace accelerate::prepared
