// SPDX-License-Identifier: Apache-2.0
// Private: what each rank saves of sharded tensors, so that no rank needs a whole tensor.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "accelerate/checkpoint/checkpoint_content.hpp"
#include "accelerate/prepared/accelerator_state.hpp"
#include "accelerate/prepared/sharded_optimizer_state.hpp"

namespace accelerate::prepared {

/// True if the ranks save their parts of sharded tensors. Ranges of parts of tensor parallel layers would not be ranges
/// of whole tensors, so these are gathered.
[[nodiscard]] bool saves_parts(const AcceleratorState& shared);

/// True if the elements of a parameter have one order in memory and in files, so that a rank can save a range of them.
/// Others (channels last, and parameters without elements) are saved whole.
[[nodiscard]] bool has_parts(const at::Tensor& parameter);

/// Returns a whole tensor as one part.
[[nodiscard]] checkpoint::TensorPart whole_part(std::string kind, int64_t index, std::string name,
                                                const at::Tensor& tensor);

/// Returns this rank's parts of parameters, masters and optimizer state, without copies, and removes the latter from
/// `states`. Empty unless ranks save their parts.
/// \param states  Result of sharded_states().
[[nodiscard]] std::vector<checkpoint::TensorPart> take_parts(AcceleratorState& shared, OptimizerStates& states);

/// Returns the parameters, by TensorImpl, that ranks save in parts. The same on all ranks.
[[nodiscard]] std::unordered_set<const void*> parameters_in_parts(AcceleratorState& shared);

}  // namespace accelerate::prepared
