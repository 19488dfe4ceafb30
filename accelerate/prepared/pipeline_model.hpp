// SPDX-License-Identifier: Apache-2.0
// Support of nn::Pipeline in prepare(). A step of a prepared pipeline includes the forward, backward() and reduction.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <string_view>
#include <vector>

#include "accelerate/base/error.hpp"

namespace accelerate::pipeline {
struct ModelLayout;
}

namespace accelerate::prepared {

class ModelCore;
struct AcceleratorState;

/// Returns the layout of an nn::Pipeline, and null for another module.
/// \throws Error (usage) if the stages are not those of the mesh's pipeline group, if one process has stages on several
///         devices and there are several data parallel ranks, or if a communication hook is set.
[[nodiscard]] std::shared_ptr<const pipeline::ModelLayout> layout_of_pipeline(const AcceleratorState& shared,
                                                                              const torch::nn::Module& module,
                                                                              bool has_comm_hook);

/// Returns true if the pipeline places its layers itself, on given devices or on several ranks. A null layout returns
/// false.
[[nodiscard]] bool places_own_layers(const pipeline::ModelLayout* layout);

/// Wraps the steps of an nn::Pipeline. They then also broadcast buffers, compute in the dtypes of the precision policy,
/// weight and scale the loss, and average the gradients. Does nothing for another module. After the model is retired,
/// its steps run as if it were not prepared.
void wrap_train_step(const std::shared_ptr<AcceleratorState>& shared, const std::shared_ptr<ModelCore>& core,
                     torch::nn::Module& module);

/// Returns true if one of the parameters belongs to a pipeline over several ranks. For an empty list, returns true if
/// one of the models is such a pipeline.
[[nodiscard]] bool spans_pipeline_stages(const std::vector<std::shared_ptr<ModelCore>>& models,
                                         const std::vector<at::Tensor>& parameters);
/// \throws Error (usage) if the model is a pipeline over several ranks that free_memory() has released, because its
///         other stages are unknown.
void refuse_released_stages(AcceleratorState& shared, const ModelCore& model, std::string_view operation);
/// \throws Error (usage) if one of the parameters has a gradient and is in no stage: a norm over the stages would count
///         it several times.
void refuse_parameters_of_no_stage(const AcceleratorState& shared,
                                   const std::vector<std::shared_ptr<ModelCore>>& models,
                                   const std::vector<at::Tensor>& parameters);
/// Returns true for this rank's copy of a tied parameter if a lower rank of the pipeline counts it in norms.
[[nodiscard]] bool is_tied_copy(const std::vector<std::shared_ptr<ModelCore>>& models, const at::Tensor& parameter);

/// \param reason  Continues the sentence "... is not supported for a Pipeline, because ...".
/// \throws Error (usage) if one of the models is a pipeline and there are several data parallel ranks.
void refuse_pipelines(const AcceleratorState& shared, const std::vector<std::shared_ptr<ModelCore>>& models,
                      std::string_view operation, std::string_view reason);

}  // namespace accelerate::prepared
