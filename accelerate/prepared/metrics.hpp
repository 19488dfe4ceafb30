// SPDX-License-Identifier: Apache-2.0
// What metrics and checkpoints ask for by name.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <string>
#include <string_view>
#include <vector>

#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/shared.hpp"

namespace accelerate::prepared {

/// objects   of this rank, one per sample of its batch, as bytes
/// returns   every rank's, in rank order, without those that only filled the open loop's last batch
std::vector<std::string> gather_objects_for_metrics(const Shared& shared, const std::vector<std::string>& objects);

/// Throws Error (usage) for a name that is none.
comm::ReduceOp reduce_op_of(std::string_view name, const Place& place);

/// The model's parameters, then its buffers.
torch::OrderedDict<std::string, at::Tensor> state_dict(const ModelCore& model);

}  // namespace accelerate::prepared
