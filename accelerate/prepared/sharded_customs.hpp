// SPDX-License-Identifier: Apache-2.0
// Private: registered objects with tensors of sharded parameters, such as averages of weights, in checkpoints.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "accelerate/checkpoint/checkpoint_content.hpp"
#include "accelerate/prepared/accelerator_state.hpp"
#include "accelerate/prepared/custom_state.hpp"
#include "accelerate/state/parameter_shard.hpp"
#include "accelerate/state/saved_elements.hpp"

namespace accelerate::prepared {

/// This rank's elements of the tensors of registered objects, by index of the object. Unset for an object without
/// sharded tensors.
using ShardedCustoms = std::vector<std::optional<std::vector<state::ParameterShard>>>;

/// Local; may throw on a single rank.
/// \throws Error (usage) if a tensor is a part of a parameter that no prepared model has, or if its number of elements
///         differs from its range.
[[nodiscard]] ShardedCustoms sharded_customs(AcceleratorState& shared, const std::vector<CustomObject>& customs);

/// Returns the states of the objects with sharded tensors. A tensor that ranks save in parts is appended to `parts`;
/// the others are gathered on rank 0 and are empty on other ranks. Collective.
/// \param own  Result of sharded_customs() on this rank.
[[nodiscard]] std::vector<std::optional<checkpoint::CustomState>> gather_customs(
    AcceleratorState& shared, const ShardedCustoms& own, std::vector<checkpoint::TensorPart>& parts);

/// Replaces saved tensors of sharded parameters by this rank's elements, and placeholders of others by whole tensors.
/// \param index  Number of the object in errors.
/// \throws Error (data) if the saved tensor of a sharded parameter has another shape.
void take_own_elements(AcceleratorState& shared, const CustomObject& object, size_t index,
                       checkpoint::CustomState& saved, const state::ReadElements& read);

/// Replaces `parameters` of the object: it returns the sharded parameters in place of this rank's parts. Keeps a
/// reference to `shared`.
[[nodiscard]] CustomObject with_sharded_parameters(AcceleratorState& shared, CustomObject object);

/// Returns the tensors that the object would save, of sharded ones this rank's elements; nothing for other states.
[[nodiscard]] std::optional<checkpoint::NamedTensors> own_tensors(const CustomObject& object);

}  // namespace accelerate::prepared
