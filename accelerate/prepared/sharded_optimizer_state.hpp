// SPDX-License-Identifier: Apache-2.0
// Private: collects the ranks' parts of sharded optimizer state for a checkpoint.
#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include "accelerate/checkpoint/checkpoint_content.hpp"
#include "accelerate/prepared/accelerator_state.hpp"
#include "accelerate/state/optimizer_state.hpp"

namespace accelerate::sharding {
class FullyShardedParameters;
}

namespace accelerate::prepared {

/// States by optimizer index; unset for an optimizer that is not sharded.
using OptimizerStates = std::vector<std::optional<state::OptimizerState>>;

/// Whole values of sharded parameters by TensorImpl: on rank 0 in the memory of the host, on other ranks empty tensors.
struct WholeWeights {
  std::unordered_map<const void*, at::Tensor> values{};
  std::unordered_map<const void*, at::Tensor> masters{};  ///< of parameters with a float32 master
};

/// \throws Error (usage) if a sharded model has gradients of an earlier backward, and no prepared optimizer has any of
/// its
///         parameters: an optimizer that was not prepared sees no gradients.
void check_sharded_models_are_stepped(AcceleratorState& shared);

/// Gathers the sharded parameters of the models on rank 0, one at a time. Collective.
[[nodiscard]] WholeWeights gather_weights(const std::vector<sharding::FullyShardedParameters*>& models);
/// Replaces sharded parameters by their whole values.
void replace_sharded(checkpoint::NamedTensors& weights, const WholeWeights& whole);

/// Returns the state of this rank, without copies: tensors of the ranges that this rank owns. Local; may throw on a
/// single rank.
[[nodiscard]] OptimizerStates sharded_states(AcceleratorState& shared);

/// Returns the states with whole tensors on rank 0 and without tensors on the other ranks. A tensor of one parameter at
/// a time is in transit. Collective.
/// \param own  Result of sharded_states() on this rank.
[[nodiscard]] OptimizerStates gather_states(AcceleratorState& shared, const OptimizerStates& own);

}  // namespace accelerate::prepared
