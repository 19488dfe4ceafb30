// SPDX-License-Identifier: Apache-2.0
// Private: checks models with tensor parallel layers, and refuses calls that would compute wrong values for them.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string_view>
#include <vector>

#include "accelerate/gradient/named_tensor.hpp"
#include "accelerate/prepared/accelerator_state.hpp"
#include "accelerate/tensor_parallel/clip.hpp"

namespace accelerate::prepared {

class ModelCore;

/// Collective over the data parallel group if the model has split layers.
///
/// \throws Error (usage) if the data parallel ranks have different parts, because the gradients of different parts
///         would be averaged; if the parts are not those of the mesh's tensor parallel group; or if a sharding strategy
///         is set without a mesh.
void check_split_parameters(const AcceleratorState& shared, const std::vector<gradient::NamedTensor>& parameters);

/// Makes the parameters and buffers that are not split equal to those of tensor parallel rank 0. Does nothing without
/// tensor parallelism; otherwise collective over the tensor parallel group.
/// \throws Error (usage) if the ranks have different parameters.
void make_equal_in_tensor_group(const AcceleratorState& shared, const std::vector<gradient::NamedTensor>& parameters,
                                const std::vector<gradient::NamedTensor>& buffers, int64_t bucket_bytes);

/// Returns the parameters that are not parts of tensor parallel layers.
[[nodiscard]] std::vector<gradient::NamedTensor> without_split(const std::vector<gradient::NamedTensor>& parameters);

/// Returns the gradients of the parameters, or this rank's elements of them if the models are sharded.
[[nodiscard]] nn::SplitGradients split_gradients(const std::vector<std::shared_ptr<ModelCore>>& models,
                                                 const std::vector<at::Tensor>& parameters);

/// Returns true if one of the tensors is a part of a tensor parallel layer.
[[nodiscard]] bool has_split(const std::vector<at::Tensor>& tensors);
[[nodiscard]] bool has_split(const ModelCore& model);

/// \param reason  Ends the sentence "... is a part of a tensor parallel layer, and ...".
/// \throws Error (usage) if one of the parameters is a part, and the Accelerator has no tensor parallel group: it was
///         constructed with the data parallel group.
void refuse_split_parameters(const AcceleratorState& shared, const std::vector<at::Tensor>& parameters,
                             std::string_view operation, std::string_view reason);

/// As refuse_split_parameters() for a model, because files would contain the parts of one rank.
void refuse_split_model(const AcceleratorState& shared, const ModelCore& model, std::string_view operation);
/// As refuse_split_model() for all prepared models.
void refuse_split_models(AcceleratorState& shared, std::string_view operation);

}  // namespace accelerate::prepared
