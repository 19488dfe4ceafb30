// SPDX-License-Identifier: Apache-2.0
// Private: refuses calls that would compute wrong values for models with tensor parallel layers.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

#include "accelerate/gradient/named_tensor.hpp"
#include "accelerate/prepared/accelerator_state.hpp"

namespace accelerate::prepared {

class ModelCore;

/// Collective over the Accelerator's group if the model has split layers.
///
/// \throws Error (usage) if the ranks of the Accelerator have different parts, because the gradients of different parts
///         would be averaged; or if a sharding strategy is set.
void check_split_parameters(const AcceleratorState& shared, const std::vector<gradient::NamedTensor>& parameters);

/// \param reason  Ends the sentence "... is a part of a tensor parallel layer, and ...".
/// \throws Error (usage) if one of the parameters is a part.
void refuse_split_parameters(const AcceleratorState& shared, const std::vector<at::Tensor>& parameters,
                             std::string_view operation, std::string_view reason);

/// As refuse_split_parameters() for a model, because files would contain the parts of one rank.
void refuse_split_model(const AcceleratorState& shared, const ModelCore& model, std::string_view operation);
/// As refuse_split_model() for all prepared models.
void refuse_split_models(AcceleratorState& shared, std::string_view operation);

}  // namespace accelerate::prepared
