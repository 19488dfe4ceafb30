// SPDX-License-Identifier: Apache-2.0
// Which layers are in which stage, and which parameters several ranks use. Private.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "accelerate/comm/group.hpp"
#include "accelerate/pipeline/tied_parameters.hpp"

namespace accelerate {
struct PipelineOptions;
}

namespace accelerate::pipeline {

/// Returns the number of layers of each stage, the same on all ranks: rank 0 decides. Collective over the group.
/// \param group  Unset if all stages are in this process.
/// \throws Error (usage) if the options do not fit the layers; Error (peer) if rank 0 has another number of layers.
[[nodiscard]] std::vector<int64_t> divide_layers(const torch::nn::Sequential& layers, int64_t stages,
                                                 const PipelineOptions& options,
                                                 const std::optional<comm::Group>& group);

/// Parameters that are used on several ranks, in the order of their first use.
/// \param rank_of_layer  [L]
[[nodiscard]] std::vector<TiedParameter> shared_parameters(const torch::nn::Sequential& layers,
                                                           const std::vector<int64_t>& rank_of_layer);

}  // namespace accelerate::pipeline
