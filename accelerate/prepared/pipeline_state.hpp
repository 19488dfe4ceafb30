// SPDX-License-Identifier: Apache-2.0
// Private: saves and loads the stages of a pipeline. Checkpoints contain the whole model.
#pragma once

#include <string_view>
#include <vector>

#include "accelerate/checkpoint/checkpoint_content.hpp"
#include "accelerate/prepared/accelerator_state.hpp"
#include "accelerate/prepared/pipeline_optimizer_state.hpp"

namespace accelerate::prepared {

class ModelCore;

/// \throws Error (usage) with several stages if the model is not a Pipeline, or if save_on_each_node is set.
void check_stage_model(AcceleratorState& shared, const ModelCore& model, std::string_view operation,
                       bool save_on_each_node);
/// The same for all models.
/// \throws Error (usage) also if a parameter of an optimizer belongs to no Pipeline, or is listed in another order than
///         that of the model.
void check_stages(AcceleratorState& shared, std::string_view operation, bool save_on_each_node);
/// \throws Error (usage) if an optimizer saves its state by itself, because such states of stages cannot be combined.
void check_stage_content(const AcceleratorState& shared, const checkpoint::CheckpointContent& content);

/// Converts the tensors of this stage to parts of the checkpoint. Joins the tensors of registered objects, such as
/// moving averages of weights, on the first stage. Does nothing without stages. Collective over the pipeline group.
void convert_to_stage_parts(AcceleratorState& shared, const std::vector<OptimizerParameterNames>& optimizers,
                            checkpoint::CheckpointContent& content);

/// Removes the tensors of other stages from the saved tensors of a registered object.
/// \param own  Tensors of the object on this rank.
void keep_own_stage(AcceleratorState& shared, const checkpoint::NamedTensors& own, checkpoint::NamedTensors& saved);

/// Gathers the tensors of all stages in host memory on rank 0, one at a time, in the order of the whole model. On other
/// ranks `weights` becomes empty. Collective over the world.
void gather_stages(const ModelCore& model, checkpoint::NamedTensors& weights);

}  // namespace accelerate::prepared
