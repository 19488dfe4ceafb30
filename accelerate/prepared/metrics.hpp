// SPDX-License-Identifier: Apache-2.0
// Gathered objects, reduction names and the state dictionary of a model.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <string>
#include <string_view>
#include <vector>

#include "accelerate/prepared/accelerator_state.hpp"
#include "accelerate/prepared/model.hpp"

namespace accelerate::prepared {

/// \param objects  Objects of this rank as bytes, one per sample of its batch.
/// \returns The objects of all ranks in rank order, without those of padding in the open loop's last batch.
std::vector<std::string> gather_objects_for_metrics(const AcceleratorState& shared,
                                                    const std::vector<std::string>& objects);

/// \throws Error (usage) if the name is not a reduction.
comm::ReduceOp reduce_op_of(std::string_view name, const RankContext& place);

/// Returns the model's parameters, then its buffers.
torch::OrderedDict<std::string, at::Tensor> state_dict(const ModelCore& model);

}  // namespace accelerate::prepared
